// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpointtest attaches containers of a test's node (test/nettest/node)
// by plugins that make a veth pair, in process.
package endpointtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/nettest/node"
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

// DoIn is Do with a context.
func (p *Pod) DoIn(ctx context.Context, verb spec.Verb) error {
	p.w.Helper()
	conf := "{" + p.Conf
	if p.Result != nil && verb != spec.Add {
		data, err := p.Result.Encode("1.1.0")
		Must(p.w, err)
		conf += `, "prevResult": ` + string(data)
	}
	call := p.Call
	call.Verb, call.Config = verb, []byte(conf+"}")
	out, err := p.w.inv.Invoke(ctx, p.w.kind, &call)
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

// Gone expects a link of the host not to exist.
func (w *World) Gone(name string) {
	w.Helper()
	if _, err := w.HostConn().Link(name); !nl.IsNotFound(err) {
		w.Errorf("%s is still there (%v)", name, err)
	}
}

// Want compares.
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

// Static is the section ipam of a configuration with fixed addresses, each optionally
// followed by a blank and a gateway.
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
