"use strict";
const at = id => document.getElementById(id), q = at("q"), bad = at("bad");
const nets = [...document.querySelectorAll("details")].map(d => {
	const name = d.querySelector("strong").textContent;
	const rows = [...d.querySelectorAll("tbody tr")].map(r => ({r, text: (name + " " + r.textContent + " " + r.cells[0].title).toLowerCase(), bad: r.querySelector(".bad") !== null}));
	return {d, name: name.toLowerCase(), rows, bad: d.querySelector(".bad") !== null};
});
let before = null; // which networks were open when the search began
function show() {
	const s = q.value.trim().toLowerCase(), active = s !== "" || bad.checked;
	if (active && !before) before = nets.map(n => n.d.open);
	let shown = 0;
	for (const n of nets) {
		let hits = 0;
		for (const x of n.rows) {
			const hit = x.text.includes(s) && (!bad.checked || x.bad);
			x.r.hidden = !hit;
			if (hit) hits++;
		}
		shown += hits;
		n.d.hidden = active && hits === 0 && !(n.name.includes(s) && (!bad.checked || n.bad));
		if (active) n.d.open = !n.d.hidden;
	}
	if (!active && before) { nets.forEach((n, i) => n.d.open = before[i]); before = null; }
	at("n").value = active ? shown + (shown === 1 ? " attachment" : " attachments") + " shown" : "";
}
q.addEventListener("input", show);
bad.addEventListener("change", show);
at("open").addEventListener("click", () => nets.forEach(n => n.d.open = true));
at("close").addEventListener("click", () => nets.forEach(n => n.d.open = false));
addEventListener("keydown", e => {
	if (e.key === "/" && document.activeElement !== q) { e.preventDefault(); q.focus(); }
	if (e.key === "Escape" && document.activeElement === q) { q.value = ""; show(); }
});
function reveal() { // a link leads into a closed table: browsers differ in whether they open it
	const to = at(location.hash.slice(1)), d = to && to.closest("details");
	if (d) { d.hidden = false; d.open = true; to.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
at("tools").hidden = false;
