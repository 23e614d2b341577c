// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netmap

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"strings"

	"github.com/patchbay-net/patchbay/cli/doctor"
)

//go:embed page.css
var pageStyle string

//go:embed page.js
var script string

// HTML returns the map as a page that loads nothing.
func HTML(m *Map) string {
	w := &writer{}
	style := colours + drawingStyle + pageStyle
	w.put(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; form-action 'none'; style-src '%s'; script-src '%s'">
<title>Networks of %s</title>
<style>%s</style></head><body>
`, hash(style), hash(script), m.Node, markup(style))
	w.head(m)
	w.overview(m)
	w.put(`<p id="tools" hidden><label>Search <input id="q" type="search" autocomplete="off" spellcheck="false"></label>
<label><input id="bad" type="checkbox"> only broken</label> <button id="open">Open all</button> <button id="close">Close all</button>
<output id="n" aria-live="polite"></output></p>
`)
	for i := range m.Networks {
		w.network(&m.Networks[i], i)
	}
	w.put("</main>\n<script>%s</script>\n</body></html>\n", markup(script))
	return w.String()
}

// hash is how the page's policy names a script or a style that it allows.
func hash(text string) markup {
	sum := sha256.Sum256([]byte(text))
	return markup("sha256-" + base64.StdEncoding.EncodeToString(sum[:]))
}

// head says what is wrong with the node, and leads to the networks that have something wrong.
func (w *writer) head(m *Map) {
	all, broken := m.attachments()
	w.put("<main><h1>Networks of %s</h1>\n<p>%s in %s, ", m.Node, counted(all, "attachment"), counted(len(m.Networks), "network"))
	switch broken {
	case 0:
		w.put("none broken.")
	default:
		w.put(`<strong class="bad">⚠ %d broken</strong>.`, broken)
	}
	w.put(` <span class="dim">Made <time datetime="%s">%s</time> by patchbay map.</span></p>`+"\n", m.Made.Format("2006-01-02T15:04:05Z07:00"), m.Made.Format("2006-01-02 15:04:05 MST"))
	var wrong []int
	for i := range m.Networks {
		if m.Networks[i].state().class() != "" {
			wrong = append(wrong, i)
		}
	}
	if len(m.Findings)+len(wrong) == 0 {
		w.put("<p>doctor finds nothing wrong.</p>\n")
		return
	}
	w.put("<h2>What is wrong</h2>\n<ul class=\"wrong\">\n")
	w.findings(m.Findings)
	for _, i := range wrong {
		s := m.Networks[i].state()
		w.put(`<li><a href="#n%d">network %s</a>: <span class="%s">%s</span>`+"\n", i, m.Networks[i].Name, s.class(), s.text())
	}
	w.put("</ul>\n")
}

// findings writes items of a list, problems first.
func (w *writer) findings(list []doctor.Finding) {
	for _, level := range [...]doctor.Level{doctor.Problem, doctor.Warning} {
		for _, f := range list {
			if f.Level == level {
				w.put("<li>")
				w.finding(f)
				w.put("\n")
			}
		}
	}
}

func (w *writer) finding(f doctor.Finding) {
	class, sign := "warn", ""
	if f.Level == doctor.Problem {
		class, sign = "bad", "⚠ "
	}
	w.put(`<span class="%s">%s%s: %s</span>`, class, sign, string(f.Level), oneLine(f.What))
	if f.Fix != "" {
		w.put(` <span class="do">do: <code>%s</code></span>`, oneLine(f.Fix))
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// overview is the drawing, in which each network leads to its table.
func (w *writer) overview(m *Map) {
	if len(m.Networks)+len(m.Hosts) == 0 {
		return
	}
	p := arrange(m, false)
	w.put(`<h2>Overview</h2>
<div class="scroll" role="region" tabindex="0" aria-label="Overview"><svg role="group" aria-label="Networks by bridge or interface. The tables below say the same." width="%d" height="%d" viewBox="0 0 %d %d">
`, p.W, p.H, p.W, p.H)
	w.draw(m, p, true)
	w.put("</svg></div>\n<h2>Networks</h2>\n")
}

// network writes the table of a network. If something is wrong, it is open.
func (w *writer) network(n *Network, at int) {
	s, open := n.state(), ""
	if s.class() != "" {
		open = " open"
	}
	w.put(`<details%s><summary><strong>%s</strong>: %s`, markup(open), n.Name, strings.Join(nonEmpty(counted(len(n.Attachments), "attachment"), n.title(), strings.Join(n.Subnets, " ")), ", "))
	if text := s.text(); text != "" {
		w.put(`, <span class="%s">%s</span>`, s.class(), text)
	}
	w.put("</summary>\n")
	w.put(`<p id="n%d" class="dim">%s</p>`+"\n", at, n.from())
	if len(n.Findings) > 0 {
		w.put("<ul class=\"wrong\">\n")
		w.findings(n.Findings)
		w.put("</ul>\n")
	}
	if len(n.Attachments) > 0 {
		w.table(n)
	}
	w.put("</details>\n")
}

// from says what the configuration has, and where it is.
func (n *Network) from() string {
	if len(n.Plugins) == 0 {
		return "its configuration is not known"
	}
	text := "plugins " + strings.Join(n.Plugins, ", ")
	if n.File == "" {
		return text + "; not from a file in the directory of networks"
	}
	return text + "; " + n.File
}

func nonEmpty(words ...string) (list []string) {
	for _, word := range words {
		if word != "" {
			list = append(list, word)
		}
	}
	return list
}

func (w *writer) table(n *Network) {
	w.put(`<div class="scroll" role="region" tabindex="0" aria-label="Attachments of %s"><table><thead><tr>`, n.Name)
	for _, head := range [...]string{"Container", "Interface", "Addresses", "On the host", "Ports", "Policies", "State"} {
		w.put(`<th scope="col">%s`, head)
	}
	w.put("</thead><tbody>\n")
	for i := range n.Attachments {
		w.attachment(&n.Attachments[i])
	}
	w.put("</tbody></table></div>\n")
}

// attachment writes a row. The tooltip of its head has the whole id, in which the search looks too.
func (w *writer) attachment(a *Attached) {
	w.put(`<tr><th scope="row" title="%s">%s`, a.ContainerID, a.title())
	if where := strings.Join(nonEmpty(a.NetNS, a.Process), ", "); where != "" {
		w.put(" <small>%s</small>", where)
	}
	w.put("<td>%s", a.IfName)
	w.codes(a.Addresses)
	w.codes(a.HostLinks)
	w.codes(a.Ports)
	w.put("<td>%s<td>", strings.Join(a.Policies, ", "))
	if len(a.Findings) == 0 {
		w.put("ok")
	}
	for _, f := range a.Findings {
		w.finding(f)
	}
	w.put("\n")
}

// codes writes a cell whose words are never broken.
func (w *writer) codes(words []string) {
	w.put("<td>")
	for _, word := range words {
		w.put("<code>%s</code> ", word)
	}
}
