// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/paths"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var (
	storage = npwg.Definition{Namespace: "infra", Name: "storage", UID: "u1", ResourceVersion: "7", Config: `{"type":"macvlan"}`, Resource: "vendor/nic"}
	edge    = npwg.Definition{Namespace: "shop", Name: "edge.v2", Config: `{"type":"ptp"}`}
	web     = Pod{npwg.Pod{Namespace: "shop", Name: "web", UID: "5f0c-1"}, "edge.v2"}
)

func write(t *testing.T, p paths.Paths, s State) int {
	t.Helper()
	changed, err := Write(p, s)
	must(t, err)
	return changed
}

// What was written is read, files that do not differ are left, and what the state does not have goes.
func TestWrite(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	all := State{[]npwg.Definition{storage, edge}, []Pod{web}}
	if n := write(t, p, all); n != 3 {
		t.Errorf("%d files changed, want 3", n)
	}
	for _, want := range all.Definitions {
		if got, err := Definition(p, want.Namespace, want.Name); err != nil || got != want {
			t.Errorf("%+v, %v\nwant %+v", got, err, want)
		}
	}
	if got, err := Annotation(p, web.Pod); err != nil || got != "edge.v2" {
		t.Errorf("%q, %v", got, err)
	}
	if n := write(t, p, all); n != 0 {
		t.Errorf("%d files changed, want none", n)
	}
	newer := storage
	newer.Config = `{"type":"ipvlan"}`
	if n := write(t, p, State{Definitions: []npwg.Definition{newer}}); n != 3 {
		t.Errorf("%d files changed, want 3", n)
	}
	if got, err := Definition(p, "infra", "storage"); err != nil || got != newer {
		t.Errorf("%+v, %v", got, err)
	}
	for _, err := range []error{second(Definition(p, "shop", "edge.v2")), second(Annotation(p, web.Pod))} {
		if !errors.Is(err, ErrMissing) {
			t.Errorf("after the removal: %v", err)
		}
	}
	if list, errs := Definitions(p); len(list) != 1 || list[0] != newer || len(errs) > 0 {
		t.Errorf("%+v, %v", list, errs)
	}
}

func second[T any](_ T, err error) error { return err }

// A killed Write leaves temporary files, which are no definitions. The next one removes them.
func TestKilledWrite(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	write(t, p, State{Definitions: []npwg.Definition{storage}})
	temp := filepath.Join(dir(p), "definitions/infra/other~")
	must(t, os.WriteFile(temp, []byte("half"), 0o600))
	if list, errs := Definitions(p); len(list) != 1 || len(errs) > 0 {
		t.Errorf("%+v, %v", list, errs)
	}
	write(t, p, State{Definitions: []npwg.Definition{storage}})
	if _, err := os.Stat(temp); err == nil {
		t.Error("the temporary file is still there")
	}
}

// No ADD uses a file that is not as it was written, or under another name, or that other users could have written.
func TestDamage(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"cut short": func(path string) error { return os.Truncate(path, 90) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"another's": func(path string) error {
			return os.Rename(filepath.Join(filepath.Dir(path), "../../definitions/shop/edge.v2"), path)
		},
		"a newer format":  func(path string) error { return os.WriteFile(path, []byte("networks 2 0\n{}"), 0o600) },
		"an unsafe place": func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
		"a directory":     func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"no regular file": func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)) },
		"JSON of no sense": func(path string) error {
			return os.WriteFile(path, []byte("networks 1 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := paths.Paths{State: t.TempDir()}
			write(t, p, State{Definitions: []npwg.Definition{storage, edge}})
			must(t, harm(filepath.Join(dir(p), "definitions/infra/storage")))
			if d, err := Definition(p, "infra", "storage"); err == nil || errors.Is(err, ErrMissing) || d != (npwg.Definition{}) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// The file of a pod is that of its UID, and a pod of another name does not get it.
func TestAnnotation(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	write(t, p, State{Pods: []Pod{web, {Pod: npwg.Pod{Namespace: "shop", Name: "bad", UID: "../x"}}}})
	for name, c := range map[string]struct {
		pod     npwg.Pod
		missing bool
	}{
		"another UID":  {npwg.Pod{Namespace: "shop", Name: "web", UID: "5f0c-2"}, true},
		"no UID":       {npwg.Pod{Namespace: "shop", Name: "web"}, true},
		"a path":       {npwg.Pod{Namespace: "shop", Name: "web", UID: "../x"}, true},
		"another name": {npwg.Pod{Namespace: "shop", Name: "web-2", UID: "5f0c-1"}, false},
	} {
		if text, err := Annotation(p, c.pod); err == nil || errors.Is(err, ErrMissing) != c.missing {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// A name that cannot be written is reported, and the others are written.
func TestBadNames(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	_, err := Write(p, State{Definitions: []npwg.Definition{{Namespace: "..", Name: "x"}, {Namespace: "a", Name: "../b"}, edge}})
	if err == nil || strings.Count(err.Error(), "not a valid name") != 2 {
		t.Errorf("error %v", err)
	}
	if _, err := Definition(p, "shop", "edge.v2"); err != nil {
		t.Error(err)
	}
	if _, err := Definition(p, "..", "x"); err == nil || errors.Is(err, ErrMissing) {
		t.Errorf("a path as a name: %v", err)
	}
}

// If a new file cannot be written, the old one goes: an ADD must not use what the cluster no longer has.
func TestNoOldFile(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	write(t, p, State{Definitions: []npwg.Definition{storage}})
	must(t, os.Mkdir(filepath.Join(dir(p), "definitions/infra/storage~"), 0o700)) // where the temporary file would be, if the kernel has none without a name
	newer := storage
	newer.Config = "{}"
	_, err := Write(p, State{Definitions: []npwg.Definition{newer}})
	got, rerr := Definition(p, "infra", "storage")
	if got == storage || err == nil && got != newer || err != nil && !errors.Is(rerr, ErrMissing) {
		t.Errorf("Write: %v; then %+v, %v", err, got, rerr)
	}
}

func TestReady(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	must(t, Ready(p))
	write(t, p, State{Definitions: []npwg.Definition{storage}})
	must(t, Ready(p))
	must(t, os.Chmod(filepath.Join(dir(p), "definitions"), 0o777))
	if err := Ready(p); err == nil {
		t.Error("others may write definitions")
	}
	must(t, Remove(p))
	must(t, Ready(p))
}

// A mirror without definitions was written, too.
func TestWritten(t *testing.T) {
	p := paths.Paths{State: t.TempDir()}
	if Written(p) {
		t.Error("written before the first Write")
	}
	write(t, p, State{Definitions: []npwg.Definition{storage}})
	write(t, p, State{})
	if !Written(p) {
		t.Error("not written after a Write")
	}
	must(t, Remove(p))
	if Written(p) {
		t.Error("written after Remove")
	}
}
