// A new node counts its runs: ComfyUI's own default for a control is "randomize", which would draw
// a run's place in the sequence at random. What a saved workflow says is loaded after this.
import { app } from "../../scripts/app.js";

const NODES = ["BalancedPromptsText", "BalancedPromptsEncode"];

app.registerExtension({
  name: "balanced-prompts.index",
  nodeCreated(node) {
    if (!NODES.includes(node.comfyClass)) {
      return;
    }
    const index = node.widgets?.find((widget) => widget.name === "index");
    const control = index?.linkedWidgets?.[0];
    if (control) {
      control.value = "increment";
    }
  },
});
