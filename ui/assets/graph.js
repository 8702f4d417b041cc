// The picture of an explanation: a click, Enter or space takes a fact or an entity; a double click
// or the key e also shows or hides an entity's neighbours. Drag, buttons, + and -, and the wheel
// with Ctrl move and zoom it. The server draws it wide and narrow.
const LEAST = 0.85, MOST = 1.25, NARROW = 560, STEP = 1.3, FARTHEST = 5, SECOND_CLICK_MS = 250;
export default function ({ parentElement, data, setTriggerValue }) {
  const box = parentElement.querySelector(".clew-graph");
  const [less, all, more] = parentElement.querySelectorAll("button");
  const found = document.activeElement?.closest?.(".clew-graph [tabindex]");
  const before = found && box.contains(found) ? JSON.stringify(found.dataset) : "";
  box.innerHTML = data.drawn;
  box.ariaLabel = data.alt;
  parentElement.querySelector(".clew-legend").innerHTML = data.legend;
  for (const svg of box.children) svg.setAttribute("role", "group");
  for (const part of box.querySelectorAll("[data-fact], [data-entity]")) {
    part.setAttribute("tabindex", "0");
    part.setAttribute("role", "button");
    part.setAttribute("aria-label", part.querySelector("title").textContent);
  }
  let shown, zoom = box.zoom ?? 1;
  const fit = () => {
    const room = box.clientWidth, [wide, narrow] = box.children;
    shown = room < NARROW ? narrow : wide;
    for (const svg of box.children) svg.style.display = svg === shown ? "block" : "none";
    const { width, height } = shown.viewBox.baseVal;
    const most = shown === wide ? Math.min(room / width, data.height / height) : room / width;
    const scale = Math.min(MOST, Math.max(Math.min(LEAST, room / width), most));
    shown.style.width = `${scale * zoom * width}px`;
    box.style.maxHeight = shown === wide ? `${data.height}px` : "none";
  };
  const zoomTo = (wanted) => {
    const [x, y] = [box.scrollLeft + box.clientWidth / 2, box.scrollTop + box.clientHeight / 2];
    const old = zoom;
    zoom = box.zoom = Math.min(FARTHEST, Math.max(1, wanted));
    fit();
    box.scrollTo((x * zoom) / old - box.clientWidth / 2, (y * zoom) / old - box.clientHeight / 2);
  };
  const partOf = (event) => event.target.closest("[data-fact], [data-entity]");
  const take = (part, unfold) =>
    setTriggerValue("taken", { ...part?.dataset, ...(unfold && { unfold }) });
  let waiting; // for a second click, which would come while the page is drawn for the first
  const click = (event) => {
    const part = partOf(event), again = event.detail === 2;
    clearTimeout(waiting);
    if (!part?.dataset.entity || again) take(part, again);
    else waiting = setTimeout(() => take(part), SECOND_CLICK_MS);
  };
  less.onclick = () => zoomTo(zoom / STEP);
  all.onclick = () => zoomTo(1);
  more.onclick = () => zoomTo(zoom * STEP);
  box.onwheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTo(zoom * STEP ** Math.sign(-event.deltaY));
  };
  box.onkeydown = (event) => {
    if (event.key === "+" || event.key === "-") zoomTo(zoom * (event.key === "+" ? STEP : 1 / STEP));
    if (event.target === box || !["Enter", " ", "e"].includes(event.key)) return;
    event.preventDefault();
    take(partOf(event), event.key === "e");
  };
  let from = null, moved = false;
  box.onpointerdown = (event) => {
    moved = false;
    from = event.pointerType === "mouse" ? [event.clientX, event.clientY] : null;
  };
  box.onpointermove = (event) => {
    if (!from || !event.buttons) return;
    moved ||= Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 4;
    if (moved) box.scrollBy(-event.movementX, -event.movementY);
  };
  box.onclick = (event) => moved || click(event);
  const watch = new ResizeObserver(fit);
  watch.observe(box.parentElement);
  fit();
  if (before) {
    const same = [...shown.querySelectorAll("[tabindex]")];
    same.find((part) => JSON.stringify(part.dataset) === before)?.focus();
  }
  return () => watch.disconnect();
}
