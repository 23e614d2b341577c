// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// files is a well behaved IPAM plugin that keeps one file an attachment.
func files() *plugin.Plugin {
	return &plugin.Plugin{
		Name: "files", Kind: plugin.IPAM, About: "keeps files",
		Add: filesAdd, Del: filesDel, Check: filesCheck, GC: filesGC,
	}
}

func fileOf(r *plugin.Request, o owner.Key) string {
	return filepath.Join(r.Session.Paths.Run, "files", string(o))
}

func filesAdd(_ context.Context, r *plugin.Request) (*spec.Result, error) {
	if err := r.Step("write file"); err != nil {
		return nil, err
	}
	path := fileOf(r, r.Owner)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, spec.Errorf(spec.CodeInternal, "reserve: %w", err)
	}
	r.Undo(func(context.Context) error { return os.Remove(path) })
	if err := f.Close(); err != nil {
		return nil, err
	}
	if err := r.Step("answer"); err != nil {
		return nil, err
	}
	return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.9.9/24")}}}, nil
}

func filesDel(_ context.Context, r *plugin.Request) error {
	return plugin.IgnoreGone(os.Remove(fileOf(r, r.Owner)), fs.ErrNotExist)
}

func filesCheck(_ context.Context, r *plugin.Request) error {
	if _, err := os.Stat(fileOf(r, r.Owner)); err != nil {
		return spec.Errorf(spec.CodeUnknownContainer, "reservation is missing: %w", err)
	}
	return nil
}

func filesGC(_ context.Context, r *plugin.Request) error {
	list, ok := r.Head.Valid()
	if !ok {
		return nil
	}
	keep := map[string]bool{}
	for _, a := range list {
		keep[string(owner.Of(r.Network, a.ContainerID, a.IfName))] = true
	}
	dir := filepath.Dir(fileOf(r, "x"))
	entries, err := os.ReadDir(dir)
	err = plugin.IgnoreGone(err, fs.ErrNotExist)
	for _, e := range entries {
		if !keep[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

func TestMain(m *testing.M) { Main(m, files(), echo()) }

func TestFiles(t *testing.T) {
	Run(t, files(), Case{BreakError: "missing"})
}

// echo is a chained plugin that does nothing at all.
func echo() *plugin.Plugin {
	return &plugin.Plugin{Name: "echo", Kind: plugin.Chained, Add: func(_ context.Context, r *plugin.Request) (*spec.Result, error) {
		return r.Prev(), r.Step("nothing")
	}}
}

func TestEcho(t *testing.T) {
	Run(t, echo(), Case{Subject: conformance.Subject{
		Again: true, Stateless: true, Unchecked: true,
		Conf: conformance.Object{"some": json.RawMessage(`"thing"`)},
		Prev: &conformance.Prev{Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")}},
	}})
}
