// A new node counts its runs: ComfyUI's own default for a control is "randomize", which would draw
// a run's place in the sequence at random. What a saved workflow says is loaded after this.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

// Two outputs that are easily left out: without them the workflow runs, and its pictures are wrong.
const NEEDED = {
  BalancedPromptsText: {
    used: "prompts",
    missing: "seeds",
    detail: "Connect seeds with the seed of the sampler, or pictures of one prompt come out the same.",
  },
  BalancedPromptsEncode: {
    used: "CONDITIONING",
    missing: "batch_size",
    detail: "Connect batch_size with that of the empty latent, or prompts are left out or repeated.",
  },
};
const warned = new WeakSet();

function targets(node, name) {
  const output = node.outputs?.find((slot) => slot.name === name);
  const links = (output?.links ?? []).map((id) => node.graph.getLink(id));
  return links.map((link) => node.graph.getNodeById(link?.target_id)).filter(Boolean);
}

function isNeeded(node) {
  const { used, missing } = NEEDED[node.comfyClass];
  // What goes to another of these nodes is drawn with that node's outputs.
  const drawn = targets(node, used).some((target) => !(target.comfyClass in NEEDED));
  return drawn && targets(node, missing).length === 0;
}

function warn() {
  for (const node of app.graph.nodes) {
    if (!(node.comfyClass in NEEDED) || warned.has(node) || !isNeeded(node)) {
      continue;
    }
    warned.add(node);
    app.extensionManager.toast.add({
      severity: "warn",
      summary: node.title,
      detail: NEEDED[node.comfyClass].detail,
      life: 15000,
    });
  }
}

app.registerExtension({
  name: "balanced-prompts.index",
  setup() {
    api.addEventListener("promptQueued", warn);
  },
  nodeCreated(node) {
    if (!(node.comfyClass in NEEDED)) {
      return;
    }
    const index = node.widgets?.find((widget) => widget.name === "index");
    const control = index?.linkedWidgets?.[0];
    if (control) {
      control.value = "increment";
    }
  },
});
