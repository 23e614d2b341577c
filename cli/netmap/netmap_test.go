// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netmap

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/internal/test/pages"
)

var update = flag.Bool("update", false, "write the goldens")

// small has one of everything.
func small() *Map {
	problem := func(what, fix string) []doctor.Finding {
		return []doctor.Finding{{Level: doctor.Problem, What: what, Fix: fix}}
	}
	return &Map{
		Node: "node-7", Made: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC),
		Findings: []doctor.Finding{
			{Check: "conntrack", Level: doctor.Warning, What: "the connection table is nearly full", Fix: "sysctl -w net.netfilter.nf_conntrack_max=1"},
			{Check: "forwarding", Level: doctor.Problem, What: "IPv4 forwarding is off", Fix: "sysctl -w net.ipv4.ip_forward=1"},
		},
		Networks: []Network{
			{
				Name: "pods", Driver: "bridge", Link: "cni0", Subnets: []string{"10.89.0.0/24", "fd00:89::/64"}, Plugins: []string{"bridge", "portmap", "policy"}, File: "/etc/cni/net.d/10-pods.conflist",
				Attachments: []Attached{
					{ContainerID: "3f0a5b6c7d8e9f0a1b2c", IfName: "eth0", Pod: "shop/web", NetNS: "/run/netns/web", Process: "12 nginx", Addresses: []string{"10.89.0.2/24", "fd00:89::2/64"}, Ports: []string{"0.0.0.0:8080->80/tcp"}, HostLinks: []string{"veth1a2b"}, Policies: []string{"shop/db", "shop/deny"}},
					{ContainerID: "cnitool-df26705e2e4f", IfName: "eth0", Addresses: []string{"10.89.0.3/24"}, HostLinks: []string{"veth3c4d"}, Findings: problem("eth0 has lost its address 10.89.0.3/24", "patchbay repair")},
				},
			},
			{Name: "other", Driver: "bridge", Link: "cni0", Plugins: []string{"bridge"}, Attachments: []Attached{}, Findings: problem("network other takes no containers now: no", "repair that")},
			{Name: "lan", Driver: "macvlan", Link: "eth0", Attachments: []Attached{{ContainerID: "podman1", IfName: "eth0", Name: "web", Findings: []doctor.Finding{{Level: doctor.Warning, What: "unsure"}}}}},
			{Name: "gone", Attachments: []Attached{}},
		},
		Hosts: []Host{{Address: "192.0.2.2", Link: "uplink0", Blocks: []string{"10.99.2.0/24"}}},
	}
}

func TestGolden(t *testing.T) {
	pages.Golden(t, "testdata/small.html", generated(HTML(small())), *update)
	pages.Golden(t, "testdata/small.svg", generated(SVG(small())), *update)
}

// generated returns a page with the names of the styles and of the script in place of their text and of their hashes, which
// TestPageLoadsNothing compares.
func generated(page string) string {
	return strings.NewReplacer(
		string(hash(colours+drawingStyle+pageStyle)), "hash of the styles", string(hash(script)), "hash of page.js",
		colours, "colours.css\n", drawingStyle, "drawing.css\n", pageStyle, "page.css\n", script, "page.js\n",
	).Replace(page)
}

// hostile is a name that a user may give a container: markup, quotes, a script, characters that reorder or hide text,
// and a byte that is no UTF-8.
const hostile = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\u202eevil\u0085\x00\xff]]>-->"

// hostileMap has the name wherever a text is.
func hostileMap() *Map {
	findings := []doctor.Finding{{Check: hostile, Level: doctor.Problem, What: hostile, Fix: hostile}, {Level: doctor.Level(hostile), What: hostile, Fix: hostile}}
	some := []string{hostile, hostile}
	return &Map{
		Node: hostile, Findings: findings,
		Networks: []Network{{
			Name: hostile, Driver: hostile, Link: hostile, Subnets: some, Plugins: some, File: hostile, Findings: findings,
			Attachments: []Attached{{
				ContainerID: hostile, IfName: hostile, Name: hostile, Pod: hostile, NetNS: hostile, Process: hostile, Addresses: some, MAC: hostile,
				Ports: some, HostLinks: some, Policies: some, Findings: findings,
			}},
		}},
		Hosts: []Host{{Address: hostile, Link: hostile, Blocks: some}},
	}
}

// node is an element of a document.
type node struct {
	name string
	attr map[string]string
	text string // its own and that of the elements below
}

// parsed returns the elements of a page, as a browser understands it.
func parsed(t *testing.T, page string) (list []node) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		e := node{name: n.Data, attr: make(map[string]string)}
		for _, a := range n.Attr {
			e.attr[a.Key] = a.Val
		}
		var text strings.Builder
		for below := range n.Descendants() {
			if below.Type == html.TextNode {
				text.WriteString(below.Data)
			}
		}
		e.text = text.String()
		list = append(list, e)
	}
	return list
}

func named(list []node, name string) (found []node) {
	return slices.DeleteFunc(slices.Clone(list), func(n node) bool { return n.name != name })
}

// A name is text, wherever it stands: a page of hostile names has the elements and the attributes of one with plain names.
func TestNamesAreText(t *testing.T) {
	shape := func(page string) (shape []string) {
		for _, n := range parsed(t, page) {
			keys := make([]string, 0, len(n.attr))
			for k := range n.attr {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			shape = append(shape, n.name+fmt.Sprint(keys))
		}
		return shape
	}
	plain := hostileMap()
	*plain = replaced(plain)
	for what, draw := range map[string]func(*Map) string{"HTML": HTML, "SVG": SVG} {
		page := draw(hostileMap())
		if got, want := shape(page), shape(draw(plain)); !slices.Equal(got, want) {
			t.Errorf("%s: a name became markup:\n%q\nwant\n%q", what, got, want)
		}
		if i := strings.IndexFunc(page, func(r rune) bool { return r == '\u202e' || r == '\u0085' || r == 0 || r == '\uFFFE' }); i >= 0 {
			t.Errorf("%s: a character that hides or reorders text stands in the page: %q", what, page[max(0, i-20):i+20])
		}
	}
	page := HTML(hostileMap())
	if !strings.Contains(named(parsed(t, page), "h1")[0].text, "<script>alert(1)</script>") {
		t.Error("the name is not shown as it is")
	}
}

// replaced is the map with a plain name, long enough to be cut where the other is.
func replaced(m *Map) Map {
	plain := strings.Repeat("x", 80)
	some := []string{plain, plain}
	findings := []doctor.Finding{{Level: doctor.Problem, What: plain, Fix: plain}, {Level: "other", What: plain, Fix: plain}}
	out := *m
	out.Node, out.Findings = plain, findings
	n := m.Networks[0]
	n.Name, n.Driver, n.Link, n.Subnets, n.Plugins, n.File, n.Findings = plain, plain, plain, some, some, plain, findings
	a := n.Attachments[0]
	a.ContainerID, a.IfName, a.Name, a.Pod, a.NetNS, a.Process, a.Addresses = plain, plain, plain, plain, plain, plain, some
	a.MAC, a.Ports, a.HostLinks, a.Policies, a.Findings = plain, some, some, some, findings
	n.Attachments = []Attached{a}
	out.Networks, out.Hosts = []Network{n}, []Host{{Address: plain, Link: plain, Blocks: some}}
	return out
}

// The drawing is XML: a browser shows nothing of a document with a mistake.
func TestDrawingIsXML(t *testing.T) {
	for what, m := range map[string]*Map{"small": small(), "hostile": hostileMap(), "empty": {}} {
		d := xml.NewDecoder(strings.NewReader(SVG(m)))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
}

// Each attachment of the map has one row in the table of its network, with all that people search for.
func TestEveryAttachmentHasARow(t *testing.T) {
	m := town(500)
	list := parsed(t, HTML(m))
	var rows []node
	for _, n := range named(list, "tr") {
		if !strings.HasPrefix(n.text, "Container") {
			rows = append(rows, n)
		}
	}
	ids := named(list, "th")
	ids = slices.DeleteFunc(ids, func(n node) bool { return n.attr["scope"] != "row" })
	i := 0
	for _, n := range m.Networks {
		for _, a := range n.Attachments {
			if i == len(rows) {
				t.Fatalf("%d rows", len(rows))
			}
			if ids[i].attr["title"] != a.ContainerID {
				t.Fatalf("row %d is of %s, want %s", i, ids[i].attr["title"], a.ContainerID)
			}
			want := slices.Concat([]string{a.title(), a.IfName, a.NetNS, a.Process}, a.Addresses, a.Ports, a.HostLinks, a.Policies)
			for _, f := range a.Findings {
				want = append(want, f.What, f.Fix)
			}
			for _, text := range want {
				if !strings.Contains(rows[i].text, text) {
					t.Fatalf("the row of %s does not have %q: %q", a.ContainerID, text, rows[i].text)
				}
			}
			if broken := len(a.Findings) > 0; broken != strings.Contains(rows[i].text, "⚠") || broken == strings.HasSuffix(strings.TrimSpace(rows[i].text), "ok") {
				t.Fatalf("the row of %s, broken %v: %q", a.ContainerID, broken, rows[i].text)
			}
			i++
		}
	}
	if i != len(rows) || i != 500 {
		t.Errorf("%d rows for %d attachments", len(rows), i)
	}
	drawing := SVG(m)
	for _, n := range m.Networks {
		for _, a := range n.Attachments {
			if !strings.Contains(drawing, escaped(a.title())) {
				t.Fatalf("the drawing does not have %s", a.title())
			}
			for _, f := range a.Findings {
				if want := "⚠ broken " + strings.TrimSuffix(a.Addresses[0], "/16"); !strings.Contains(drawing, escaped(want)) || !strings.Contains(drawing, escaped(f.What+"; do: "+f.Fix)) {
					t.Fatalf("the drawing does not say what is wrong with %s", a.title())
				}
			}
		}
	}
}

// A link leads to the network that it names, and each id is there once.
func TestLinksLeadToTheirNetwork(t *testing.T) {
	m := small()
	list := parsed(t, HTML(m))
	ids, links := make(map[string]int), make(map[string]int)
	for _, n := range list {
		if id := n.attr["id"]; id != "" {
			ids[id]++
		}
	}
	for _, a := range named(list, "a") {
		href := a.attr["href"]
		if ids[strings.TrimPrefix(href, "#")] != 1 {
			t.Errorf("the link %s leads to %d elements", href, ids[href])
		}
		for i, n := range m.Networks {
			if href == fmt.Sprintf("#n%d", i) && !strings.Contains(a.text, n.Name) {
				t.Errorf("%s leads to network %s, but says %q", href, n.Name, a.text)
			}
		}
		links[href]++
	}
	// pods, other and lan have something wrong, so the list above the drawing leads to them too.
	if want := map[string]int{"#n0": 2, "#n1": 2, "#n2": 2, "#n3": 1}; fmt.Sprint(links) != fmt.Sprint(want) {
		t.Errorf("links %v, want %v", links, want)
	}
	at := 0
	for _, n := range list {
		if n.name == "details" {
			if _, open := n.attr["open"]; !strings.HasPrefix(n.text, m.Networks[at].Name) || open != (m.Networks[at].state().class() != "") {
				t.Errorf("network %d: open %v: %.60q", at, open, n.text)
			}
			at++
		}
	}
	if at != len(m.Networks) {
		t.Errorf("%d networks in the page", at)
	}
}

// The page loads nothing, and its own policy allows its script and its style.
func TestPageLoadsNothing(t *testing.T) {
	list := parsed(t, HTML(small()))
	var policy string
	for _, n := range list {
		if n.attr["http-equiv"] == "Content-Security-Policy" {
			policy = n.attr["content"]
		}
		for _, key := range []string{"src", "style", "onclick"} {
			if n.attr[key] != "" {
				t.Errorf("%s has %s=%q", n.name, key, n.attr[key])
			}
		}
		if href := n.attr["href"]; href != "" && !strings.HasPrefix(href, "#") {
			t.Errorf("%s leads to %s", n.name, href)
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") {
		t.Errorf("policy %q", policy)
	}
	for _, name := range []string{"script", "style"} {
		all := named(list, name)
		if len(all) != 1 || !strings.Contains(policy, name+"-src '"+string(hash(all[0].text))+"'") || strings.Contains(all[0].text, "url(") || strings.Contains(all[0].text, "@import") {
			t.Errorf("%d elements %s; policy %q", len(all), name, policy)
		}
	}
}

// Nothing in the drawing overlaps, and all is inside of its frame.
func TestLayout(t *testing.T) {
	for _, rows := range []bool{false, true} {
		p := arrange(town(200), rows)
		var frames []rect
		for _, f := range p.Frames {
			inside(t, f.rect, p.Node)
			frames = append(frames, f.rect)
			var boxes []rect
			for _, b := range f.Boxes {
				inside(t, b.rect, f.rect)
				boxes = append(boxes, b.rect)
			}
			apart(t, boxes)
		}
		apart(t, append(append(frames, p.Hosts...), rect{p.W, 0, 1, p.H}, rect{0, p.H, p.W, 1}))
		apart(t, []rect{p.Node, p.Others})
		for _, h := range p.Hosts {
			inside(t, h, p.Others)
		}
		if len(p.Hosts) != 6 {
			t.Errorf("%d hosts", len(p.Hosts))
		}
	}
}

func inside(t *testing.T, a, in rect) {
	t.Helper()
	if a.X < in.X || a.Y < in.Y || a.X+a.W > in.X+in.W || a.Y+a.H > in.Y+in.H {
		t.Errorf("%v is not inside of %v", a, in)
	}
}

func apart(t *testing.T, list []rect) {
	t.Helper()
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%v overlaps %v", a, b)
			}
		}
	}
}

// A text in the drawing stays in its box, also one of wide characters.
func TestFitted(t *testing.T) {
	for _, c := range []struct {
		in, want string
		cut      bool
	}{{"short", "short", false}, {strings.Repeat("a", 10), strings.Repeat("a", 10), false}, {strings.Repeat("a", 11), strings.Repeat("a", 9) + "…", true}, {"漢漢漢漢漢漢", "漢漢漢漢…", true}, {"", "", false}} {
		if got, cut := fitted(c.in, 73); got != c.want || cut != c.cut {
			t.Errorf("%q: %q %v, want %q", c.in, got, cut, c.want)
		}
	}
}

// town is a node with n attachments in 10 networks, which share five bridges.
func town(n int) *Map {
	m := &Map{Node: "node-7", Made: time.Unix(0, 0)}
	for g := range 10 {
		w := Network{Name: fmt.Sprintf("net%d", g), Driver: "bridge", Link: fmt.Sprintf("pb-br%d", g/2), Subnets: []string{fmt.Sprintf("10.%d.0.0/16", 60+g), fmt.Sprintf("fd%02d::/64", 60+g)}, Plugins: []string{"bridge", "portmap", "firewall", "policy"}, File: fmt.Sprintf("/etc/cni/net.d/%d.conflist", g)}
		for i := range n / 10 {
			a := Attached{
				ContainerID: fmt.Sprintf("%064x", i*7919+g), IfName: "eth0", Pod: fmt.Sprintf("shop-%d/web-%d-%05x", g, i, i*7919+g), NetNS: fmt.Sprintf("/run/netns/cni-%08x-1d2e-4f5a-8b9c-%012x", i, g), Process: fmt.Sprintf("%d nginx", 1000+i),
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d/16", 60+g, i/250, i%250+2), fmt.Sprintf("fd%02d::%x/64", 60+g, i+2)}, MAC: "02:00:00:00:00:01",
				HostLinks: []string{fmt.Sprintf("veth%08x", i*104729+g)}, Policies: []string{"shop/web", "shop/deny-all"},
			}
			if i%5 == 0 {
				a.Ports = []string{fmt.Sprintf("0.0.0.0:%d->8080/tcp", 30000+g*100+i)}
			}
			if i%29 == 7 && g%3 == 0 {
				a.Findings = []doctor.Finding{{Level: doctor.Problem, What: "eth0 has lost its address 10.60.0.2/16", Fix: "patchbay repair"}}
			}
			w.Attachments = append(w.Attachments, a)
		}
		m.Networks = append(m.Networks, w)
	}
	for i := range 6 {
		m.Hosts = append(m.Hosts, Host{Address: fmt.Sprintf("192.0.2.%d", i+2), Link: "uplink0", Blocks: []string{fmt.Sprintf("10.99.%d.0/24", i)}})
	}
	return m
}

// A browser of a busy operator opens the page at once: 500 attachments take 250 kB.
func TestSize(t *testing.T) {
	const most = 250_000
	m := town(500)
	html, svg := len(HTML(m)), len(SVG(m))
	t.Logf("500 attachments: HTML %d bytes, SVG %d bytes", html, svg)
	if html > most || svg > most {
		t.Errorf("500 attachments: HTML %d bytes, SVG %d bytes, at most %d", html, svg, most)
	}
}

func BenchmarkHTML(b *testing.B) {
	m := town(500)
	for b.Loop() {
		HTML(m)
	}
}

func BenchmarkSVG(b *testing.B) {
	m := town(500)
	for b.Loop() {
		SVG(m)
	}
}
