// Make new nodes count their runs. By default, ComfyUI would set the control to "randomize", which
// would choose a random index for each run. The setting of a saved workflow is loaded after this.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

// Two outputs that are easily forgotten. Without them, the workflow runs but generates wrong images.
const NEEDED = {
  BalancedPromptsText: {
    used: "prompts",
    missing: "seeds",
    detail: "Connect seeds to the sampler's seed. Otherwise, images of the same prompt are identical.",
  },
  BalancedPromptsEncode: {
    used: "CONDITIONING",
    missing: "batch_size",
    detail: "Connect batch_size to the empty latent. Otherwise, prompts may be omitted or repeated.",
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
  // If the output goes to another of these nodes, that node's outputs are used for sampling.
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
