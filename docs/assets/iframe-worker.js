// A browser starts no worker on a page that was opened as a file. There the search runs in a hidden frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      this.frame.srcdoc = "<!doctype html><title>search</title>"
      this.ready = new Promise(resolve => this.frame.addEventListener("load", () => this.start(address, resolve), { once: true }))
      document.documentElement.append(this.frame)
    }

    start(address, resolve) {
      const inside = this.frame.contentWindow
      // what the script of the worker sends out
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = address
      script.addEventListener("load", () => resolve(inside))
      inside.document.head.append(script)
    }

    async postMessage(data) {
      const inside = await this.ready
      inside.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
