// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpointtest attaches containers of a test's node (internal/test/nettest/node)
// by plugins that make a veth pair, in process.
package endpointtest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// World is the node with plugins on it.
type World struct {
	*testing.T
	*node.Node
	inv  plugin.Builtin
	kind string
}

// New creates a node. The first plugin attaches, the others are its delegates.
func New(t *testing.T, plugins ...*plugin.Plugin) *World {
	w := &World{T: t, Node: node.New(t), kind: plugins[0].Name}
	w.inv.NewSession = func() *plugin.Session { return plugin.NewSession(plugins) }
	return w
}

// Pod is a container with its configuration and result.
type Pod struct {
	*node.Space
	Call   spec.Call
	Conf   string       // without the outer braces and prevResult
	Result *spec.Result // of the last ADD

	w *World
}

// Pod creates a container. conf is a configuration without name, type, version and outer
// braces.
func (w *World) Pod(name, conf string) *Pod {
	w.Helper()
	s := w.Space(name)
	conf = fmt.Sprintf(`"cniVersion": "1.1.0", "name": "net", "type": %q, %s`, w.kind, conf)
	return &Pod{Space: s, w: w, Conf: conf, Call: spec.Call{
		ContainerID: name, NetNS: s.Path, IfName: "eth0", Path: []string{"/nonexistent"},
	}}
}

// Do calls the plugin, with the last result as the previous one.
func (p *Pod) Do(verb spec.Verb) error {
	p.w.Helper()
	return p.DoIn(context.WithoutCancel(p.w.Context()), verb)
}

// DoIn works like Do, with a context.
func (p *Pod) DoIn(ctx context.Context, verb spec.Verb) error {
	p.w.Helper()
	return p.DoBy(ctx, p.w.kind, verb)
}

// DoBy works like DoIn, with another plugin than the world's first.
func (p *Pod) DoBy(ctx context.Context, kind string, verb spec.Verb) error {
	p.w.Helper()
	conf := "{" + p.Conf
	if p.Result != nil && verb != spec.Add {
		data, err := p.Result.Encode("1.1.0")
		Must(p.w, err)
		conf += `, "prevResult": ` + string(data)
	}
	call := p.Call
	call.Verb, call.Config = verb, []byte(conf+"}")
	out, err := p.w.inv.Invoke(ctx, kind, &call)
	if err == nil && verb == spec.Add {
		p.Result, err = spec.ParseResult(out, "1.1.0")
	}
	return err
}

// Add attaches, and detaches when the test ends.
func (p *Pod) Add() *Pod {
	p.w.Helper()
	Must(p.w, p.Do(spec.Add))
	p.w.Cleanup(func() {
		if err := p.Do(spec.Del); err != nil {
			p.w.Error(err)
		}
	})
	return p
}

// Refused expects an ADD to fail with a text.
func (p *Pod) Refused(text string) {
	p.w.Helper()
	p.w.Fails(p.Do(spec.Add), text)
}

// IP returns the nth address.
func (p *Pod) IP(n int) string { return p.Result.IPs[n].Address.Addr().String() }

// Gateway returns the gateway of the nth address.
func (p *Pod) Gateway(n int) string { return p.Result.IPs[n].Gateway.String() }

// Link is a link of the container.
func (p *Pod) Link(name string) netlink.Link {
	p.w.Helper()
	link, err := p.Conn().Link(name)
	Must(p.w, err)
	return link
}

// HostConn is a socket in the host's namespace.
func (w *World) HostConn() *nl.Conn { return w.Host.Conn() }

// HostLink is a link of the host.
func (w *World) HostLink(name string) netlink.Link {
	w.Helper()
	link, err := w.HostConn().Link(name)
	Must(w, err)
	return link
}

// Gone checks that a link of the host does not exist.
func (w *World) Gone(name string) {
	w.Helper()
	if _, err := w.HostConn().Link(name); !nl.IsNotFound(err) {
		w.Errorf("%s is still there (%v)", name, err)
	}
}

// Want compares a value with the wanted one.
func (w *World) Want(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// Fails expects an error with a text.
func (w *World) Fails(err error, text string) {
	w.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		w.Errorf("got %v, want %q", err, text)
	}
}

// LoseRecords removes the records, which are only hints.
func (w *World) LoseRecords() {
	w.Helper()
	Must(w, os.RemoveAll("/run/patchbay/attachments"))
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Static returns the section ipam of a configuration with fixed addresses. A blank and a gateway
// may follow each address.
func Static(addrs ...string) string {
	var list []string
	for _, a := range addrs {
		addr, gateway, ok := strings.Cut(a, " ")
		if ok {
			gateway = fmt.Sprintf(`, "gateway": %q`, gateway)
		}
		list = append(list, fmt.Sprintf(`{"address": %q%s}`, addr, gateway))
	}
	return `"ipam": {"type": "static", "addresses": [` + strings.Join(list, ",") + `]}`
}

// Join is an address with a port.
func Join(addr, port string) string { return net.JoinHostPort(addr, port) }

// testKill kills an ADD with kill -9 at any moment. DEL and GC each remove what is left.
func testKill(w *World, c Child) {
	w.Master("m0")
	dir := plugintest.Install(w.T, c.Plugins[:2]...)
	p := w.Pod("kill", c.on("m0", Dual))
	tries := draw.Number(w, "PATCHBAY_CRASH_TRIES", 18, 60)
	if testing.Short() {
		tries = 12
	}
	kills := nettest.NewKills(w, "ADD")
	for n := 0; kills.More(tries); n++ {
		kills.Try(func(after time.Duration) bool { return p.Killed(dir, after) })
		w.collect(p, []spec.Verb{spec.Del, spec.GC}[n%2])
		links, err := p.Conn().LinkList()
		if err != nil || len(links) != 1 {
			w.Fatalf("try %d: links %v (%v)", n, links, err)
		}
		w.Forgotten()
	}
}

// Killed runs an ADD as a process and kills the process (SIGKILL) after some time. It reports
// whether the kill came before the end of the ADD.
func (p *Pod) Killed(dir string, after time.Duration) bool {
	p.w.Helper()
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Add, []string{dir}, []byte("{"+p.Conf+"}")
	ctx, cancel := context.WithTimeout(p.w.Context(), after)
	defer cancel()
	_, err := (&invoke.Exec{Stderr: io.Discard}).Run(ctx, filepath.Join(dir, p.w.kind), &call)
	if ctx.Err() == nil {
		Must(p.w, err)
	}
	return err != nil
}

// Misled gives a space neighbour entries for addresses behind one of its links. The entries have an
// Ethernet address that no interface has.
func (w *World) Misled(s *node.Space, link string, addrs ...string) {
	w.Helper()
	l, err := s.Conn().Link(link)
	Must(w, err)
	for _, a := range addrs {
		Must(w, s.Conn().NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: netip.MustParseAddr(a).AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x66}, State: netlink.NUD_STALE,
		}))
	}
}

// AtOnce checks that a pod is reached without a wait. Neighbours would need 5 s and more to
// correct their entries by themselves.
func (w *World) AtOnce(from *node.Space, p *Pod, want ...string) {
	w.Helper()
	for n := range p.Result.IPs {
		to := Join(p.IP(n), "80")
		p.Serve("udp", to)
		start := time.Now()
		w.Want(to, from.Ask("udp", to), p.Name+" "+want[n])
		if took := time.Since(start); took > 4*time.Second {
			w.Errorf("%s answered after %v", to, took)
		}
	}
}

var update = flag.Bool("update", false, "write the goldens")

// Updates reports whether the test writes its goldens.
func Updates() bool { return *update }

// Compile is a plugin's pure part. From a configuration and IPAM's answer (nil: none) it computes
// the state and the result for a pair.
type Compile func(r *plugin.Request, pair *endpoint.Pair, ipam *spec.Result) (netstate.State, *spec.Result, error)

// Goldens compares a plugin's compile with the files of testdata/compile. Each file has the
// configuration, IPAM's answer, the state and the result as text.
func Goldens(t *testing.T, p *plugin.Plugin, compile Compile) {
	files, err := filepath.Glob("testdata/compile/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { golden(t, file, p, compile) })
	}
}

func golden(t *testing.T, file string, p *plugin.Plugin, compile Compile) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := txtar.Format(ar)
	part := map[string][]byte{}
	for _, f := range ar.Files {
		part[f.Name] = f.Data
	}
	state, result := compiled(t, p, part["conf"], part["ipam"], compile)
	for i, f := range ar.Files {
		switch f.Name {
		case "state":
			ar.Files[i].Data = state
		case "result":
			ar.Files[i].Data = result
		}
	}
	got := txtar.Format(ar)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Error(d)
	}
}

func compiled(t *testing.T, p *plugin.Plugin, conf, ipam []byte, compile Compile) (state, result []byte) {
	t.Helper()
	pair := &endpoint.Pair{
		Owner: "abcdefghijklmno", Host: "veth1", IfName: "eth0", NetNS: "/run/netns/c",
		HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	var addresses *spec.Result
	if len(ipam) > 0 {
		var err error
		if addresses, err = spec.ParseResult(ipam, spec.Current); err != nil {
			t.Fatal(err)
		}
	}
	r := &plugin.Request{Plugin: p, Call: &spec.Call{Config: conf, IfName: pair.IfName, NetNS: pair.NetNS}, Owner: pair.Owner}
	if _, err := r.Conf(); err != nil {
		t.Fatal(err)
	}
	s, made, err := compile(r, pair, addresses)
	if err != nil {
		return []byte(err.Error() + "\n"), nil
	}
	result, err = json.MarshalIndent(made, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return []byte(s.String()), append(result, '\n')
}
