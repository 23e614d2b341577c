// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// secret plays the content of a pod's annotations, which runtimes pass to plugins.
var secret = strings.Repeat("s3cr3t-annotation ", 256<<10/18)

// node is the whole chain of an ordinary node.
func node(extra string) string { return withAnnotations("small", extra) }

// withAnnotations is node with annotations of a pod.
func withAnnotations(text, extra string) string {
	return `{"cniVersion":"1.1.0","name":"refuse","plugins":[
	{"type":"bridge","bridge":"refuse0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.66.0.0/24"}},
	{"type":"portmap","capabilities":{"portMappings":true,"io.kubernetes.cri.pod-annotations":true}},
	{"type":"firewall","ingressPolicy":"same-bridge","capabilities":{"io.kubernetes.cri.pod-annotations":true}},
	{"type":"tuning","mtu":1400}],
	"runtimeConfig":{"portMappings":[{"hostPort":10090,"containerPort":80}],"io.kubernetes.cri.pod-annotations":{"a":"` + text + `"}}` + extra + `}`
}

// eachState calls fn for everything below the state directories.
func eachState(t *testing.T, fn func(path string, d fs.DirEntry)) {
	t.Helper()
	p := paths.Default()
	for _, dir := range []string{p.Run, p.CNI, p.RunCNI} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				fn(path, d)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Only root can read the state. host-local's directories have the reference's modes. Annotations
// are stored nowhere.
func TestModesAndSecrets(t *testing.T) {
	c := call(spec.Add, nettest.NewNS(t, "refuse"), withAnnotations(secret, ""))
	out, stderr, err := run("patchbay", c)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out)+stderr, "s3cr3t") {
		t.Error("annotations are in the result or on standard error")
	}
	p, files := paths.Default(), 0
	eachState(t, func(path string, d fs.DirEntry) {
		info, err := d.Info()
		if err != nil {
			t.Fatal(err)
		}
		mode, want := info.Mode().Perm(), fs.FileMode(0o600)
		addresses := strings.HasPrefix(path+"/", p.CNI+"/")
		switch {
		case d.IsDir() && (addresses || path == p.RunCNI):
			want = mode & 0o755
		case d.IsDir():
			want = 0o700
		case addresses && d.Name() == "lock":
			want = 0o750
		}
		if mode != want {
			t.Errorf("%s: mode %v, want %v", path, mode, want)
		}
		if d.IsDir() {
			return
		}
		files++
		if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "s3cr3t") {
			t.Errorf("%s holds annotations, or %v", path, err)
		}
	})
	if files < 8 {
		t.Errorf("only %d files of state", files)
	}
	c.Config = []byte(withAnnotations(secret, `,"plugins":7`)) // refused
	c.Verb = spec.Check
	if _, stderr, err := run("patchbay", c); err == nil || strings.Contains(err.Error()+stderr, "s3cr3t") {
		t.Error("CHECK succeeds, or its error tells annotations")
	}
	c.Verb, c.Config = spec.Del, []byte(withAnnotations(secret, ""))
	if _, stderr, err := run("patchbay", c); err != nil || strings.Contains(stderr, "s3cr3t") {
		t.Errorf("DEL: %v", err)
	}
}

// A symbolic link replaces every file and directory of state in turn. No verb writes or deletes
// behind it.
func TestPlantedLinks(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	add := func() { _, _, _ = run("patchbay", call(spec.Add, ns, node(""))) } // may refuse
	del := func() { _, _, _ = run("patchbay", call(spec.Del, ns, node(""))) }
	gc := func() {
		c := call(spec.GC, "", node(`,"cni.dev/valid-attachments":[]`))
		c.ContainerID, c.IfName = "", ""
		_, _, _ = run("patchbay", c)
	}
	add()
	var state []string
	p := paths.Default()
	eachState(t, func(path string, d fs.DirEntry) {
		operators := path == p.Run || path == p.CNI || path == p.RunCNI || path == filepath.Join(p.CNI, "networks")
		if !operators && path != filepath.Join(p.RunCNI, "tuning") { // these may be the operator's links
			state = append(state, path)
		}
	})
	del()
	if len(state) < 12 {
		t.Fatalf("only %d paths of state: %v", len(state), state)
	}
	for _, path := range some(state) {
		outside := t.TempDir()
		for _, name := range []string{"victim", filepath.Base(path)} {
			if err := os.WriteFile(filepath.Join(outside, name), []byte("precious"), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		for _, target := range []string{outside, filepath.Join(outside, "victim")} {
			add()
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
			del()
			add()
			gc()
			if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == fs.ModeSymlink {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			del()
		}
		entries, err := os.ReadDir(outside)
		if err != nil || len(entries) != 2 {
			t.Errorf("a link at %s: outside is now %v, %v", path, entries, err)
		}
		for _, e := range entries {
			fi, err := os.Stat(filepath.Join(outside, e.Name()))
			if err != nil || fi.Mode().Perm() != 0o640 || fi.Size() != int64(len("precious")) {
				t.Errorf("a link at %s: %s outside was changed: %v, %v", path, e.Name(), fi, err)
			}
		}
	}
}

// Every verb works with an empty or shortened file in place of each state file.
func TestTornState(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	for _, content := range []string{"", "{\"sch"} {
		for _, verb := range []spec.Verb{spec.Add, spec.Del, spec.Check, spec.GC, spec.Status} {
			if _, _, err := run("patchbay", call(spec.Add, ns, node(""))); err != nil {
				t.Fatal(err)
			}
			eachState(t, func(path string, d fs.DirEntry) {
				if !d.IsDir() && !strings.HasSuffix(path, "lock") && filepath.Base(filepath.Dir(path)) != "refs" {
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			})
			c := call(verb, ns, node(""))
			if !c.PerContainer() {
				c.ContainerID, c.IfName, c.NetNS = "", "", ""
			}
			_, stderr, err := run("patchbay", c)
			if err != nil && strings.Contains(err.Error(), "panic") {
				t.Errorf("%s with %q: %v", verb, content, err)
			}
			if verb == spec.Del && (err != nil || !strings.Contains(stderr, "broken record")) {
				t.Errorf("DEL with %q: %v, and on standard error %.300q", content, err, stderr)
			}
			if _, _, err := run("patchbay", call(spec.Del, ns, node(""))); err != nil {
				t.Errorf("DEL after %s with %q: %v", verb, content, err)
			}
		}
	}
}

// The state cannot be written. A DEL of an attachment that never existed succeeds.
func TestDelOnReadOnlyState(t *testing.T) {
	ns := nettest.NewNS(t, "refuse")
	p := paths.Default()
	for dir, others := range map[string]string{p.Run: "attachments/refuse", p.RunCNI: "tuning"} {
		must(t, os.MkdirAll(dir, 0o755))
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		must(t, os.MkdirAll(filepath.Join(dir, others), 0o700)) // the network has other attachments
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	for _, pl := range all.Plugins() {
		for _, netNS := range []string{ns, ""} {
			c := call(spec.Del, netNS, accepted(t, pl.Name))
			if _, stderr, err := run(pl.Name, c); err != nil && pl.Name != "dhcp" { // the keeper does not run
				t.Errorf("%s: %v\n%s", pl.Name, err, stderr)
			}
		}
	}
	if _, stderr, err := run("patchbay", call(spec.Del, ns, node(""))); err != nil {
		t.Errorf("%v\n%s", err, stderr)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
