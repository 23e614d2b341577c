// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// clampConf is the configuration of clamp.
type clampConf struct {
	MTU int `json:"mtu"`
}

// clamper is a chained plugin that sets the MTU of the container's interface and remembers the original one in a file. It
// also sets a sysctl, which ends with the namespace.
// wrong names a fault of wrongClamps; without one the plugin is correct.
type clamper struct{ wrong string }

func clamp(wrong string) *plugin.Plugin {
	c := clamper{wrong}
	p := &plugin.Plugin{
		Name: "clamp", Kind: plugin.Chained, About: "sets an MTU", Conf: func() any { return new(clampConf) },
		Files: []string{"clamp/*_*"},
		Add:   c.add, Del: c.del, Check: clampCheck, GC: clampGC,
	}
	if wrong == "no files" {
		p.Files = nil
	}
	return p
}

// wrongClamps lists wrong plugins. For each it names the test of the contract that must report the fault, and what the test says.
var wrongClamps = []struct{ wrong, noticed, says string }{
	{"no undo", "faults", `"commit": failed ADD left behind:`},
	{"no undo", "faults", "first sandbox: changed veth eth0 mtu from 1500 to 1400"},
	{"no undo of a sysctl", "faults", "changed sysctl net/ipv4/conf/eth0/arp_filter from 0 to 1"},
	{"the last value", "in-process/add-again", "changed veth eth0 mtu from 1500 to 1400"},
	{"the last other value", "changed", "changed veth eth0 mtu from 1500 to 1400"},
	{"no restore", "in-process/life", "changed veth eth0 mtu from 1500 to 1400"},
	{"no files", "unrecorded", "plugin.Plugin.Files must name it"},
	{"the old result", "in-process/life", "interface eth0: the result has mtu 1500, the kernel 1400"},
}

func (c clamper) add(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, k := plugin.ConfOf[clampConf](r), kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	link, err := env.Sandbox.Link(r.IfName)
	if err != nil {
		return nil, err
	}
	now := link.Attrs().MTU
	if err := c.remember(k, r, now, conf.MTU); err != nil {
		return nil, err
	}
	if err := r.Step("mtu"); err != nil {
		return nil, err
	}
	if c.wrong != "no undo" {
		r.Undo(func(context.Context) error { return env.Sandbox.LinkSetMTU(link, now) })
	}
	if err := env.Sandbox.LinkSetMTU(link, conf.MTU); err != nil {
		return nil, err
	}
	return c.adjust(r, conf.MTU), c.filter(r, env.Sandbox)
}

func (c clamper) filter(r *plugin.Request, in *nl.Conn) error {
	key := "net/ipv4/conf/" + r.IfName + "/arp_filter"
	was, err := in.Sysctl(key)
	if err = errors.Join(err, r.Step("sysctl")); err != nil {
		return err
	}
	if c.wrong != "no undo of a sysctl" {
		r.Undo(func(context.Context) error { return in.SetSysctl(key, was) })
	}
	return in.SetSysctl(key, "1")
}

func (c clamper) remember(k *kernel.Kernel, r *plugin.Request, now, want int) error {
	path := clampFile(r, r.ContainerID, r.IfName)
	first := clampRead(path)
	if err := k.Record(r, &record.Record{}); err != nil {
		return err
	}
	if err := r.Step("file"); err != nil {
		return err
	}
	r.Undo(func(context.Context) error {
		if first != 0 {
			return clampWrite(path, first)
		}
		return clampForget(path)
	})
	if c.wrong == "the last value" || c.wrong == "the last other value" && now != want {
		first = now
	}
	return clampWrite(path, cmp.Or(first, now))
}

func (c clamper) adjust(r *plugin.Request, mtu int) *spec.Result {
	result := r.Prev()
	for i := range result.Interfaces {
		if e := &result.Interfaces[i]; e.Name == r.IfName && e.MTU != 0 && c.wrong != "the old result" {
			e.MTU = mtu
		}
	}
	return result
}

func (c clamper) del(_ context.Context, r *plugin.Request) error {
	k := kernel.Of(r)
	return k.Detach(r, nil, func(*record.Record) error {
		path := clampFile(r, r.ContainerID, r.IfName)
		if env, err := k.DelEnv(r); err == nil && env.Sandbox != nil {
			if err := c.restore(env.Sandbox, r.IfName, clampRead(path)); err != nil {
				return err
			}
		}
		return clampForget(path)
	})
}

func (c clamper) restore(in *nl.Conn, ifName string, mtu int) error {
	link, err := in.Link(ifName)
	if nl.IsNotFound(err) || mtu == 0 || c.wrong == "no restore" {
		return nil
	}
	if err == nil {
		err = in.LinkSetMTU(link, mtu)
	}
	return err
}

func clampCheck(_ context.Context, r *plugin.Request) error {
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	link, err := env.Sandbox.Link(r.IfName)
	if want := plugin.ConfOf[clampConf](r).MTU; err == nil && link.Attrs().MTU != want {
		err = spec.Errorf(spec.CodeInternal, "mtu is %d", link.Attrs().MTU)
	}
	return err
}

func clampGC(ctx context.Context, r *plugin.Request) error {
	return kernel.Of(r).Sweep(ctx, r, func(rec *record.Record) error {
		return clampForget(clampFile(r, rec.ContainerID, rec.IfName))
	})
}

func clampFile(r *plugin.Request, id, ifName string) string {
	return filepath.Join(r.Session.Paths.RunCNI, "clamp", id+"_"+ifName)
}

// clampRead returns 0 if there is no file, or a torn one.
func clampRead(path string) int {
	data, _ := os.ReadFile(path)
	mtu, _ := strconv.Atoi(string(data))
	return mtu
}

func clampWrite(path string, mtu int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Append(nil, mtu), 0o600)
}

func clampForget(path string) error { return plugin.IgnoreGone(os.Remove(path), fs.ErrNotExist) }

func runClamp(t *testing.T, wrong string) {
	Run(t, clamp(wrong), Case{Subject: conformance.Subject{
		Again: true,
		Conf:  conformance.Object{"mtu": json.RawMessage("1400")}, Second: conformance.Object{"mtu": json.RawMessage("1300")},
		Prev: &conformance.Prev{Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")}},
	}})
}

func TestClamp(t *testing.T) { runClamp(t, "") }

// TestClampIs is the test that TestWrongClamps runs in a separate process.
func TestClampIs(t *testing.T) {
	if wrong := os.Getenv("FAULT"); wrong != "" {
		runClamp(t, wrong)
	}
}

// TestWrongClamps checks that the contract finds a value that is not restored, and a file that nobody finds.
func TestWrongClamps(t *testing.T) {
	for _, w := range wrongClamps {
		notices(t, "TestClampIs", "clamp", w.wrong, w.noticed, w.says)
	}
}
