"use strict";
// Search in pages that are opened from disk. Browsers start no worker there, so that a hidden frame runs its script;
// mkdocs.yml lists this file as a polyfill, in the place of one that the theme would fetch from another site.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      this.ready = new Promise((loaded) => this.frame.addEventListener("load", loaded));
      this.frame.srcdoc = `<script>postMessage = (data) => parent.postMessage(data, "*");</script><script src="${url}"></script>`;
      addEventListener("message", ({ source, data }) => {
        if (source === this.frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.body.append(this.frame);
    }

    /** To the frame, by the page's own function: that of the frame leads back here. */
    postMessage(data) { this.ready.then(() => window.postMessage.call(this.frame.contentWindow, data, "*")); }
    terminate() { this.frame.remove(); }
  };
  window.Worker = window.IFrameWorker;
}
