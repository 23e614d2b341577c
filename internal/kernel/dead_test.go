// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// The sweep removes a cached result only if it is empty and no libcni may still be writing it.
func TestDropEmptyResult(t *testing.T) {
	dir := t.TempDir()
	w := &deadSweep{session: &plugin.Session{Paths: paths.Paths{CNI: dir}}, network: "pods"}
	path := filepath.Join(dir, "results", "pods-c1-eth0")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text  string
		age   time.Duration
		stays bool
	}{{"", 0, true}, {"", 2 * sweepGrace, false}, {"{", 2 * sweepGrace, true}} {
		then := time.Now().Add(-c.age)
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
		if err := w.dropEmptyResult(spec.AttachmentKey{ContainerID: "c1", IfName: "eth0"}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); c.stays != (err == nil) {
			t.Errorf("%q of an age of %v: %v", c.text, c.age, err)
		}
	}
	if err := w.dropEmptyResult(spec.AttachmentKey{ContainerID: "c2", IfName: "eth0"}); err != nil {
		t.Errorf("no file: %v", err)
	}
}

// The sweep keeps an attachment for any of these reasons. judged are its records.
func TestSweepOfTheDeadKeeps(t *testing.T) {
	c := newCaller(t)
	old, dead := time.Now().Add(-2*sweepGrace), filepath.Join(filepath.Dir(c.netNS), "gone")
	results := filepath.Join(paths.Default().CNI, "results")
	c.must(os.MkdirAll(results, 0o700))
	c.must(os.WriteFile(filepath.Join(results, c.network+"-again-eth0"), fmt.Appendf(nil,
		`{"kind":"cniCacheV1","containerId":"again","ifName":"eth0","networkName":%q,"netns":%q}`, c.network, c.netNS), 0o600))
	pod := func(change func(*record.Record)) *record.Record {
		c.record("bridge", "c1", &record.Record{})
		rec, err := record.New(paths.Default().Run).Read(c.network, c.owner("c1"), "bridge")
		c.must(err)
		rec.Pod, rec.NetNS = "default/web", dead
		rec.NetNSMark.Ino++ // of a namespace that is nowhere
		change(rec)
		return rec
	}
	for about, judged := range map[string]struct {
		rec   *record.Record
		name  string
		since time.Time
		want  string
	}{
		"dead":                     {pod(func(*record.Record) {}), "bridge", old, ""},
		"torn":                     {nil, "bridge", old, "a record cannot be read, or is another program's"},
		"another program's plugin": {pod(func(*record.Record) {}), "theirs", old, "a record cannot be read, or is another program's"},
		"no pod":                   {pod(func(r *record.Record) { r.Pod = "" }), "bridge", old, "it may be another runtime's"},
		"another directory":        {pod(func(r *record.Record) { r.NetNS = "/proc/1/ns/net" }), "bridge", old, "it may be another runtime's"},
		"attached elsewhere since": {pod(func(r *record.Record) { r.ContainerID = "again" }), "bridge", old, "exists"},
		"no mark":                  {pod(func(r *record.Record) { r.NetNSMark = nil }), "bridge", old, "it may be another runtime's"},
		"young":                    {pod(func(*record.Record) {}), "bridge", time.Now(), "less than the grace period of 1m0s"},
	} {
		c.must(c.do(spec.Del, "bridge", "c1", "", func(_ context.Context, r *plugin.Request) error {
			k := Of(r)
			w := &deadSweep{session: r.Session, network: c.network, dir: filepath.Dir(c.netNS), judge: k.judge}
			_, got := w.keep(k, r.Owner, []record.CurrentRecord{{Plugin: judged.name, Record: judged.rec, Since: judged.since}})
			if (got == "") != (judged.want == "") || !strings.HasSuffix(got, judged.want) {
				t.Errorf("%s: %q, want %q", about, got, judged.want)
			}
			if _, why := w.keep(k, r.Owner, nil); why == "" {
				t.Error("an attachment without records is removed")
			}
			return nil
		}))
	}
}

// While repair works, a sweep removes nothing. It does not wait, because a healthy container would wait for it.
func TestSweepOfTheDeadBesideRepair(t *testing.T) {
	c := newCaller(t)
	c.record("bridge", "c1", &record.Record{})
	repaired, err := record.New(paths.Default().Run).Repairing(t.Context())
	c.must(err)
	defer repaired()
	c.must(c.do(spec.Del, "bridge", "c2", "", func(ctx context.Context, r *plugin.Request) error {
		w := &deadSweep{session: r.Session, network: c.network, dir: filepath.Dir(c.netNS), judge: Of(r).judge}
		began := time.Now()
		removed, err := w.remove(ctx, c.owner("c1"))
		if took := time.Since(began); removed || took > 5*time.Second {
			t.Errorf("removed: %v, after %v", removed, took)
		}
		return err
	}))
}

// A DEL by a record has all that a plugin needs, and no namespace.
func TestRecordedDel(t *testing.T) {
	call := RecordedDel("bridge", "net-1", "c1", "eth0")
	head, err := spec.ParseConf(call.Config)
	if err != nil || call.Verb != spec.Del || call.ContainerID != "c1" || call.IfName != "eth0" || call.NetNS != "" || head.Name != "net-1" || head.Type != "bridge" {
		t.Errorf("%+v %+v %v", call, head, err)
	}
	if _, err := os.Lstat(call.Path[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("plugins could be found in %v", call.Path)
	}
}

// The name is that of the reference, which hashes the two names without a separator.
func TestReferenceIFB(t *testing.T) {
	a, b := ReferenceIFB("net", "c1"), ReferenceIFB("netc", "1")
	if a != b || len(a) != 15 || a[:3] != "bwp" {
		t.Errorf("%s %s", a, b)
	}
}
