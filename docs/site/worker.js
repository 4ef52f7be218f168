// Search runs in a worker, and browsers start none for a page that was opened from disk. There, a frame does its work.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true })
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...scripts) => Promise.all(scripts.map((script) => this.load(script)))
      this.load(new URL(address, location.href).href).then(() => {
        for (const data of this.waiting) this.deliver(data)
        this.waiting = null
      })
    }
    load(source) {
      const script = this.frame.contentDocument.createElement("script")
      return new Promise((resolve, reject) => {
        Object.assign(script, { src: source, onload: resolve, onerror: reject })
        this.frame.contentDocument.body.append(script)
      })
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }
    deliver(data) {
      const inside = this.frame.contentWindow
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }
    set onmessage(listener) {
      this.addEventListener("message", listener)
    }
    terminate() {
      this.frame.remove()
    }
  }
