// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nettest/node"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// world is the node with the plugin on it.
type world struct {
	*testing.T
	*node.Node
	inv plugin.Builtin
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, Node: node.New(t)}
	for _, bridge := range []string{"tbr0", "tbr1"} {
		t.Cleanup(func() { w.Host.Delete(bridge) }) // the plugin never does
	}
	w.inv.NewSession = func() *plugin.Session {
		return plugin.NewSession([]*plugin.Plugin{&Plugin, &hostlocal.Plugin, &static.Plugin})
	}
	return w
}

// pod is a container and how it is attached.
type pod struct {
	*node.Space
	w      *world
	call   spec.Call
	conf   string // without cniVersion, prevResult
	Result *spec.Result
}

// pod makes a container. conf is a configuration without name, type, version.
func (w *world) pod(name, conf string) *pod {
	w.Helper()
	s := w.Space(name)
	conf = fmt.Sprintf(`"cniVersion": "1.1.0", "name": "net", "type": "bridge", %s`, conf)
	return &pod{Space: s, w: w, conf: conf, call: spec.Call{
		ContainerID: name, NetNS: s.Path, IfName: "eth0", Path: []string{"/nonexistent"},
	}}
}

// do calls the plugin, with the last result as the previous one.
func (p *pod) do(verb spec.Verb) error {
	p.w.Helper()
	conf := "{" + p.conf
	if p.Result != nil && verb != spec.Add {
		data, err := p.Result.Encode("1.1.0")
		must(p.w, err)
		conf += `, "prevResult": ` + string(data)
	}
	call := p.call
	call.Verb, call.Config = verb, []byte(conf+"}")
	out, err := p.w.inv.Invoke(context.WithoutCancel(p.w.Context()), "bridge", &call)
	if err == nil && verb == spec.Add {
		p.Result, err = spec.ParseResult(out, "1.1.0")
	}
	return err
}

// add attaches, and detaches when the test ends.
func (p *pod) add() *pod {
	p.w.Helper()
	must(p.w, p.do(spec.Add))
	p.w.Cleanup(func() {
		if err := p.do(spec.Del); err != nil {
			p.w.Error(err)
		}
	})
	return p
}

// ip returns the nth address.
func (p *pod) ip(n int) string { return p.Result.IPs[n].Address.Addr().String() }

// fails wants an ADD to fail with a text.
func (p *pod) fails(text string) {
	p.w.Helper()
	err := p.do(spec.Add)
	if err == nil || !strings.Contains(err.Error(), text) {
		p.w.Errorf("ADD returned %v, want %q", err, text)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) want(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// host opens the host's namespace.
func (w *world) host() *nl.Conn {
	w.Helper()
	c, err := nl.Host("/proc")
	must(w, err)
	w.Cleanup(c.Close)
	return c
}

const dual = `"bridge": "tbr0", "isDefaultGateway": true, "ipam": {"type": "host-local",
	"ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]}`

func fixed(addrs ...string) string {
	var list []string
	for _, a := range addrs {
		list = append(list, fmt.Sprintf(`{"address": %q}`, a))
	}
	return `"ipam": {"type": "static", "addresses": [` + strings.Join(list, ",") + `]}`
}

// port is the host's end of a pod.
func (w *world) port(p *pod) netlink.Link {
	w.Helper()
	link, err := w.host().Link(p.Result.Interfaces[atHost].Name)
	must(w, err)
	return link
}

func (w *world) fails(err error, text string) {
	w.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		w.Errorf("got %v, want %q", err, text)
	}
}

// loseRecords removes what only hints.
func (w *world) loseRecords() {
	w.Helper()
	must(w, os.RemoveAll("/run/patchbay/attachments"))
}

func (w *world) gone(link string) {
	w.Helper()
	if _, err := w.host().Link(link); !nl.IsNotFound(err) {
		w.Errorf("%s is still there (%v)", link, err)
	}
}
