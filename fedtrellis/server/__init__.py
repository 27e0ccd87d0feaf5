"""The server's side: the conversation with the clients, the rounds, the record."""
