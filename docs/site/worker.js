// Browsers start no workers from a folder (file://). There the search runs in a hidden
// frame instead, which is given what a worker has: messages in, messages out.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.postMessage = (data) => this.answer(data);
      const script = inside.document.createElement("script");
      this.ready = new Promise((loaded) => (script.onload = loaded));
      script.src = new URL(address, location);
      inside.document.body.append(script);
    }

    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      const message = () =>
        this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      this.ready.then(message);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
