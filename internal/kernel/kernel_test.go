// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// caller calls a plugin whose verbs are functions of a test. Each call has a session of its own, as a
// process has.
type caller struct {
	t       *testing.T
	network string
	netNS   string
	plugins []*plugin.Plugin // other plugins of the program
	log     bytes.Buffer     // the warnings of the last call
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	return &caller{t: t, network: strings.ToLower(t.Name()), netNS: nettest.NewNS(t, strings.ToLower(t.Name()))}
}

// do calls a plugin for a container. more is added to its configuration.
func (c *caller) do(verb spec.Verb, name, id, more string, fn func(context.Context, *plugin.Request) error) error {
	c.t.Helper()
	p := &plugin.Plugin{Name: name, Kind: plugin.Interface, Del: fn, GC: fn}
	p.Add = func(ctx context.Context, r *plugin.Request) (*spec.Result, error) { return nil, fn(ctx, r) }
	call := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":%q%s}`, c.network, name, more)}
	if call.PerContainer() {
		call.ContainerID, call.IfName, call.NetNS = id, "eth0", c.netNS
	}
	c.log.Reset()
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(append(c.plugins, p))
		s.Stderr = &c.log
		return s
	}}
	_, err := b.Invoke(c.t.Context(), name, call)
	return err
}

func (c *caller) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// record makes a plugin write a record for a container.
func (c *caller) record(name, id string, rec *record.Record) {
	c.t.Helper()
	c.must(c.do(spec.Add, name, id, "", func(_ context.Context, r *plugin.Request) error { return Of(r).Record(r, rec) }))
}

// collection is what a GC did.
type collection struct {
	removed []string             // containers whose records were given to the plugin
	spared  []spec.AttachmentKey // attachments whose addresses stay
}

// collect makes a GC with a list of valid containers. more is added to its configuration.
func (c *caller) collect(name, more string, remove func(*record.Record) error, valid ...string) (did collection, err error) {
	c.t.Helper()
	var list []string
	for _, id := range valid {
		list = append(list, fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, id))
	}
	more += `,"cni.dev/valid-attachments":[` + strings.Join(list, ",") + `]`
	err = c.do(spec.GC, name, "", more, func(ctx context.Context, r *plugin.Request) error {
		err := Of(r).Sweep(ctx, r, func(rec *record.Record) error {
			did.removed = append(did.removed, rec.ContainerID)
			return remove(rec)
		})
		did.spared = r.Spared()
		return err
	})
	slices.Sort(did.removed)
	return did, err
}

func nothing(*record.Record) error { return nil }

// files lists what is below the directory of the network's records.
func (c *caller) files() (names []string) {
	c.t.Helper()
	found, err := filepath.Glob(filepath.Join(paths.Default().Run, "attachments", c.network, "*"))
	c.must(err)
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return names
}

func (c *caller) owner(id string) owner.Key { return owner.Of(c.network, id, "eth0") }
