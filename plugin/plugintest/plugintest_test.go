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
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// files is a correct IPAM plugin that keeps one file for each attachment.
func files() *plugin.Plugin {
	return &plugin.Plugin{
		Name: "files", Kind: plugin.IPAM, About: "keeps files",
		Add: filesAdd, Del: filesDel, Check: filesCheck, GC: filesGC,
	}
}

func fileOf(r *plugin.Request, o owner.Key) string {
	return filepath.Join(r.Session.Paths.Run, "files", r.Network, string(o))
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
	return &spec.Result{IPs: []spec.IPConfig{{Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, r.Owner[0], r.Owner[1], r.Owner[2]}), 24)}}}, nil
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

func TestMain(m *testing.M) { Main(m, files(), echo(), clamp("")) }

// TestFilesIs is the test that TestTeeth runs in a separate process, with the fault that the
// environment names. Without a fault it is TestFiles again.
func TestFilesIs(t *testing.T) {
	p := files()
	if damage, ok := faulty[os.Getenv("FAULT")]; ok {
		damage.plant(p)
	} else if !draw.All(t) {
		return
	}
	Run(t, p, Case{})
}

// faulty lists wrong plugins. For each it names the test of the contract that must report the fault.
var faulty = map[string]struct {
	plant   func(*plugin.Plugin)
	noticed string
}{
	"DEL does nothing": {func(p *plugin.Plugin) { p.Del = nil }, "in-process/life"},
	"DEL fails when it is gone": {func(p *plugin.Plugin) {
		p.Del = func(_ context.Context, r *plugin.Request) error { return os.Remove(fileOf(r, r.Owner)) }
	}, "in-process/del-again"},
	"DEL wants a result": {func(p *plugin.Plugin) {
		p.Del = func(ctx context.Context, r *plugin.Request) error {
			if r.Prev() == nil {
				return errors.New("no result")
			}
			return filesDel(ctx, r)
		}
	}, "in-process/del-no-result"},
	"DEL wants the namespace": {func(p *plugin.Plugin) {
		p.Del = func(ctx context.Context, r *plugin.Request) error {
			if _, err := os.Stat(r.NetNS); err != nil {
				return err
			}
			return filesDel(ctx, r)
		}
	}, "in-process/del-netns-gone"},
	"CHECK sees nothing":  {func(p *plugin.Plugin) { p.Check = nil }, "in-process/check-broken"},
	"GC does nothing":     {func(p *plugin.Plugin) { p.GC = nil }, "in-process/gc"},
	"GC takes everything": {func(p *plugin.Plugin) { p.GC = filesClear }, "in-process/gc-valid"},
	"GC needs no list":    {func(p *plugin.Plugin) { p.GC = filesClear }, "in-process/gc-unlisted"},
	"ADD again succeeds": {func(p *plugin.Plugin) {
		p.Add = func(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
			_ = os.Remove(fileOf(r, r.Owner))
			return filesAdd(ctx, r)
		}
	}, "in-process/add-again"},
	"ADD undoes nothing": {func(p *plugin.Plugin) {
		p.Add = func(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
			if err := os.MkdirAll(filepath.Dir(fileOf(r, r.Owner)), 0o700); err != nil {
				return nil, err
			}
			if err := os.WriteFile(fileOf(r, r.Owner), nil, 0o600); err != nil {
				return nil, err
			}
			return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.9.9.9/24")}}}, r.Step("answer")
		}
	}, "faults"},
	"a mark that it does not make": {func(p *plugin.Plugin) { p.Marked = true }, "marked"},
	"a goroutine stays": {func(p *plugin.Plugin) {
		p.Status = func(context.Context, *plugin.Request) error { go func() { select {} }(); return nil }
	}, "leaks"},
	"a descriptor stays": {func(p *plugin.Plugin) {
		p.Status = func(context.Context, *plugin.Request) error { _, err := syscall.Dup(0); return err }
	}, "leaks"},
	"an interface in an IPAM result": {func(p *plugin.Plugin) {
		p.Add = func(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
			result, err := filesAdd(ctx, r)
			if err == nil {
				result.Interfaces = []spec.Interface{{Name: "eth0"}}
			}
			return result, err
		}
	}, "in-process/life"},
}

// filesClear is a wrong GC, which ignores the list of valid attachments.
func filesClear(_ context.Context, r *plugin.Request) error {
	return os.RemoveAll(filepath.Dir(fileOf(r, "x")))
}

// TestTeeth plants each fault and checks that the contract reports it.
func TestTeeth(t *testing.T) {
	for name, fault := range faulty {
		notices(t, "TestFilesIs", "files", name, fault.noticed, "")
	}
}

// notices runs a test of the contract in a separate process, with a fault. The test must fail and say what is wrong.
func notices(t *testing.T, test, name, fault, noticed, says string) {
	t.Helper()
	run := "^" + test + "$/^" + name + "$/^" + strings.ReplaceAll(noticed, "/", "$/^") + "$"
	cmd := exec.Command("/proc/self/exe", "-test.run="+run)
	cmd.Env = append(os.Environ(), "FAULT="+fault)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- FAIL: "+test+"/"+name+"/"+noticed) || !strings.Contains(string(out), says) {
		t.Errorf("%s: %s does not notice: %v; want %q in:\n%s", fault, noticed, err, says, out)
	}
}

// A package whose TestMain does not call Main is told so at once.
func TestUnserved(t *testing.T) {
	if err := unserved(files(), &plugin.Plugin{Name: "other"}); err == nil || !strings.Contains(err.Error(), "must call plugintest.Main(m, &Plugin)") {
		t.Errorf("a plugin that Main did not get: %v", err)
	}
}

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
