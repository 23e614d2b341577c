// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/sealed"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// deciding lists the files that decide about a pod of shop.
func deciding(p paths.Paths) map[string]Pod {
	return map[string]Pod{
		filepath.Join(dir(p), podsDir, web.UID):                   web,
		filepath.Join(dir(p), namespacesDir, another.Namespace):   another,
		filepath.Join(dir(p), headFile):                           stranger,
		filepath.Join(dir(p), podsDir, free.UID):                  free,
		filepath.Join(dir(p), namespacesDir, free.Namespace):      {"free", "new-0", ""},
		filepath.Join(dir(p), podsDir, free.UID+"-has-no-file"):   {"free", "any-0", "u-any-has-no-file"},
		filepath.Join(dir(p), namespacesDir, stranger.Namespace):  stranger,
		filepath.Join(dir(p), podsDir, another.UID):               another,
		filepath.Join(dir(p), podsDir, stranger.UID):              stranger,
		filepath.Join(dir(p), namespacesDir, web.Namespace) + "~": {"shop", "new-1", ""},
	}
}

// Each file is cut at each byte, and each of its bits is flipped (in `make test`, one bit of each
// byte). The pod is isolated, although some of the files say that it is not.
func TestDamagedFiles(t *testing.T) {
	p := mirrored(t, shop())
	for path, pod := range deciding(p) {
		good, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range good {
			damaged(t, p, path, pod, good[:i])
			found(t, p, path)
			for bit := range 8 {
				if bit != i%8 && !draw.All(t) {
					continue
				}
				turned := bytes.Clone(good)
				turned[i] ^= 1 << bit
				damaged(t, p, path, pod, turned)
				found(t, p, path)
			}
		}
		put(t, path, good)
	}
}

func damaged(t *testing.T, p paths.Paths, path string, pod Pod, data []byte) {
	t.Helper()
	put(t, path, data)
	if d, err := Read(p, pod); err == nil || !isClosed(d) || !strings.Contains(err.Error(), path) {
		t.Fatalf("file %q: got %+v, %v, want isolation and an error with the file's name", data, d, err)
	}
}

// found checks that Damaged names the file.
func found(t *testing.T, p paths.Paths, path string) {
	t.Helper()
	if errs := Damaged(p); len(errs) != 1 || !strings.Contains(errs[0].Error(), path) {
		t.Fatalf("Damaged got %v, want an error with %s", errs, path)
	}
}

// Damaged finds damage that no Read has met yet, and nothing in a complete mirror.
func TestDamaged(t *testing.T) {
	if errs := Damaged(paths.Paths{State: t.TempDir()}); len(errs) > 0 {
		t.Errorf("without a mirror: %v", errs)
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   string
	}{
		"nothing":             {func(string) error { return nil }, ""},
		"a temporary file":    {func(dir string) error { return os.WriteFile(dir+"/pods/x~", nil, 0o600) }, ""},
		"no head":             {func(dir string) error { return os.Remove(dir + "/head") }, "head"},
		"no directory":        {func(dir string) error { return os.RemoveAll(dir + "/pods") }, "pods"},
		"another's directory": {func(dir string) error { return os.Chmod(dir+"/namespaces", 0o777) }, "only root may have write access"},
		"another's file":      {func(dir string) error { return os.Rename(dir+"/namespaces/shop", dir+"/namespaces/free") }, "it is the file of pod"},
		"not a file":          {func(dir string) error { return os.Mkdir(dir+"/pods/x", 0o700) }, "remove it"},
	} {
		p := mirrored(t, shop())
		if err := c.damage(dir(p)); err != nil {
			t.Fatal(err)
		}
		errs := Damaged(p)
		if c.want == "" && len(errs) > 0 || c.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, errs, c.want)
		}
	}
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Write repairs the files.
func TestWriteRepairs(t *testing.T) {
	s := shop()
	p := mirrored(t, s)
	want := files(t, p)
	for path := range deciding(p) {
		put(t, path, []byte("x"))
	}
	mustWrite(t, p, s)
	got := files(t, p)
	left := filepath.Join("/node/policy", namespacesDir, web.Namespace+"~") // what a killed writer leaves
	if delete(got, left); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A line that this program does not know may mean isolation, so it isolates.
func TestLinesThatAreNotKnown(t *testing.T) {
	p := mirrored(t, shop())
	path := filepath.Join(dir(p), podsDir, free.UID)
	for _, line := range []string{"forward isolated\n", "ingress maybe\n", "identity xyz\n", "\n", "ingress"} {
		body := "namespace free\npod any-0\n" + line
		damaged(t, p, path, free, sealed.Seal(magic, Schema, []byte(body)))
	}
}

// Whatever a file contains, the pod is isolated, unless it is the file that we wrote.
func FuzzRead(f *testing.F) {
	open := content{"free", "any-0", policy.Decision{}}
	f.Add(open.encode())
	f.Add(content{"shop", "web-0", closed()}.encode())
	f.Add(content{"free", "", policy.Decision{}}.encode())
	f.Add([]byte(strings.Replace(string(open.encode()), magic+" 1", magic+" 2", 1)))
	f.Add([]byte(magic + " 1 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := mirrored(t, shop())
		put(t, filepath.Join(dir(p), podsDir, free.UID), data)
		d, err := Read(p, free)
		switch {
		case bytes.Equal(data, open.encode()) && err == nil && isOpen(d):
		case err == nil || !isClosed(d):
			t.Errorf("got %+v, %v, want isolation", d, err)
		}
	})
}

func TestSchemas(t *testing.T) {
	p := mirrored(t, shop())
	path := filepath.Join(dir(p), podsDir, free.UID)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, schema := range []string{"0", "2", "100"} {
		put(t, path, bytes.Replace(good, []byte(magic+" 1 "), []byte(magic+" "+schema+" "), 1))
		d, err := Read(p, free)
		want := "network policies for pod free/any-0: read " + path + `: schema "` + schema + `"; this program reads 1: install the plugins and the agent of one release; the pod is isolated`
		if err == nil || !isClosed(d) || err.Error() != want {
			t.Errorf("got %+v, %v, want isolation and %s", d, err, want)
		}
	}
}

// A file under the name of another one is damage, too.
func TestExchangedFiles(t *testing.T) {
	p := mirrored(t, shop())
	anyPod, err := os.ReadFile(filepath.Join(dir(p), podsDir, free.UID))
	if err != nil {
		t.Fatal(err)
	}
	damaged(t, p, filepath.Join(dir(p), podsDir, web.UID), web, anyPod)
	damaged(t, p, filepath.Join(dir(p), namespacesDir, "shop"), another, anyPod)
	damaged(t, p, filepath.Join(dir(p), headFile), stranger, anyPod)
}

func TestLostFiles(t *testing.T) {
	for _, name := range []string{podsDir, namespacesDir, headFile} {
		p := mirrored(t, shop())
		if err := os.RemoveAll(filepath.Join(dir(p), name)); err != nil {
			t.Fatal(err)
		}
		for _, pod := range []Pod{web, another, stranger} {
			if d, _ := Read(p, pod); !d.Sides[policy.Ingress].Isolated {
				t.Errorf("without %s, pod %+v: got %+v", name, pod, d)
			}
		}
	}
	p := mirrored(t, shop())
	for _, name := range []string{headFile, filepath.Join(namespacesDir, "shop"), filepath.Join(podsDir, web.UID)} {
		if err := os.Remove(filepath.Join(dir(p), name)); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := Read(p, web); err == nil || !isClosed(d) {
		t.Errorf("got %+v, %v, want isolation: a directory without a head is damaged", d, err)
	}
}

func TestIrregularFiles(t *testing.T) {
	p := mirrored(t, shop())
	path := filepath.Join(dir(p), podsDir, free.UID)
	for name, make := range map[string]func() error{
		"directory": func() error { return os.Mkdir(path, 0o700) },
		"pipe":      func() error { return unix.Mkfifo(path, 0o600) },
		"link":      func() error { return os.Symlink(filepath.Join(dir(p), namespacesDir, "free"), path) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if d, err := Read(p, free); err == nil || !isClosed(d) {
			t.Errorf("%s: got %+v, %v, want isolation", name, d, err)
		}
	}
}

func TestPermissions(t *testing.T) {
	p := mirrored(t, shop())
	for name, text := range files(t, p) {
		if !strings.HasPrefix(text, "drwx------ ") && !strings.HasPrefix(text, "-rw------- ") {
			t.Errorf("%s has mode %s", name, text[:10])
		}
	}
	for _, sub := range []string{"", podsDir, namespacesDir} {
		path := filepath.Join(dir(p), sub)
		chmod(t, path, 0o777)
		if d, err := Read(p, free); !errors.Is(err, durable.ErrNotOurs) || !isClosed(d) {
			t.Errorf("%s: got %+v, %v, want isolation", path, d, err)
		}
		if n, err := Write(p, policy.NewDecider(&policy.State{})); !errors.Is(err, durable.ErrNotOurs) || n > 1 {
			t.Errorf("%s: changed %d files, %v, want a refusal", path, n, err)
		}
		chmod(t, path, 0o700)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// If the disk is full, the old decision is removed, so that no ADD uses it although a new policy
// says otherwise.
func TestFullDisk(t *testing.T) {
	s := shop()
	p := node(t)
	if err := os.Mkdir(p.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", p.State, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.State, unix.MNT_DETACH) })
	mustWrite(t, p, s)
	for i := range 64 { // the last ones find no room
		data := bytes.Repeat([]byte("x"), 1<<10)
		if err := os.WriteFile(filepath.Join(p.State, strings.Repeat("x", 1+i)), data, 0o600); err != nil {
			break
		}
	}
	s.Policies[0].Namespace = "free"
	s.Policies[0].Spec.PodSelector = policy.Selector{}
	_, err := Write(p, policy.NewDecider(s))
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	for _, pod := range []Pod{free, {"free", "new", ""}} {
		if d, err := Read(p, pod); !d.Sides[policy.Ingress].Isolated {
			t.Errorf("pod %+v: got %+v, %v, want isolation", pod, d, err)
		}
	}
}

// A decision that is too large for a file isolates.
func TestTooLarge(t *testing.T) {
	s := shop()
	for len(s.Policies) < 2000 {
		np := s.Policies[0]
		np.Name = strings.Repeat("x", 1000) + string(rune('0'+len(s.Policies)))
		s.Policies = append(s.Policies, np)
	}
	p := node(t)
	if _, err := Write(p, policy.NewDecider(s)); err == nil || !strings.Contains(err.Error(), "pods/u-web would have") {
		t.Errorf("got %v", err)
	}
	if d, err := Read(p, web); err != nil || !isClosed(d) {
		t.Errorf("got %+v, %v, want isolation", d, err)
	}
}
