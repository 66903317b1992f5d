// Search in a page that was opened from a disk: there browsers start no Worker, so its script runs in a hidden frame.
// Messages pass as events between the two windows, which share an origin.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.receive(data)
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href)
      this.ready = new Promise(done => script.addEventListener("load", done))
      inside.document.body.appendChild(script)
    }

    receive(data) {
      const message = new MessageEvent("message", {data})
      this.dispatchEvent(message)
      if (this.onmessage) this.onmessage(message)
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", {data})))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
