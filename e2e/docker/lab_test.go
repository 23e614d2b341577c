// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/reftest"
)

// TestMain says when the tests were not run, by the line that `go test` knows.
func TestMain(m *testing.M) {
	flag.Parse()
	switch {
	case os.Getenv("PATCHBAY_E2E") != "1":
		fmt.Println("testing: warning: no tests to run")
		fmt.Println("e2e: not run without PATCHBAY_E2E=1 and root; `make test` runs them")
		os.Exit(0)
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "e2e: needs root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// lab is one dockerd with our driver.
type lab struct {
	*testing.T
	name, kind string // kind is dockerlab's: old, new
	script     string
	dir        string // DOCKERLAB_DIR
	plugins    string
	patchbayd  string
	driver     *exec.Cmd
	log        *os.File
}

// newLab starts a dockerd and the driver beside it.
func newLab(t *testing.T, kind string) *lab {
	t.Helper()
	root, err := reftest.Root()
	must(t, err)
	shared := os.Getenv("PATCHBAY_SHARED")
	if shared == "" {
		shared = filepath.Join(root, "../shared")
	}
	l := &lab{T: t, name: "pb" + kind, kind: kind, script: filepath.Join(shared, "dockerlab/dockerlab"), dir: t.TempDir(), plugins: reftest.Ours(t)}
	l.patchbayd = filepath.Join(l.dir, "patchbayd")
	run(t, "go", "build", "-C", root, "-o", l.patchbayd, "./cmd/patchbayd")
	if kind == "old" { // a newer client refuses some flags to an old daemon
		t.Setenv("PATH", "/usr/bin:"+os.Getenv("PATH"))
	}
	t.Setenv("DOCKERLAB_DIR", l.built())
	run(t, l.script, "build")
	must(t, os.Symlink(filepath.Join(l.built(), "bin"), filepath.Join(l.dir, "bin")))
	t.Setenv("DOCKERLAB_DIR", l.dir)
	t.Cleanup(func() { run(t, l.script, "down", l.name) })
	l.up()
	l.in("chmod", "755", "/var/lib/patchbay", "/run/patchbay", "/var/lib/cni", "/run/cni", "/etc/cni")
	l.startDriver()
	t.Cleanup(l.stopDriver)
	return l
}

// built is where a compiled dockerd stays for later runs.
func (l *lab) built() string {
	cache, err := os.UserCacheDir()
	must(l, err)
	return filepath.Join(cache, "dockerlab")
}

func (l *lab) up(args ...string) {
	l.Helper()
	run(l.T, append([]string{l.script, "up", l.name, l.kind}, args...)...)
}

// in runs a command beside the dockerd.
func (l *lab) in(argv ...string) string {
	l.Helper()
	return run(l.T, append([]string{l.script, "in", l.name}, argv...)...)
}

func (l *lab) docker(args ...string) string {
	l.Helper()
	return run(l.T, append([]string{l.script, "docker", l.name}, args...)...)
}

// refused is docker for what must fail; it returns what was said.
func (l *lab) refused(args ...string) string {
	l.Helper()
	out, err := exec.Command(l.script, append([]string{"docker", l.name}, args...)...).CombinedOutput()
	if err == nil {
		l.Errorf("docker %v worked: %s", args, out)
	}
	return string(out)
}

// startDriver starts patchbayd in the dockerd's namespaces; nsenter becomes it.
func (l *lab) startDriver() {
	l.Helper()
	pid, err := os.ReadFile(filepath.Join(l.dir, l.name, "holder.pid"))
	must(l, err)
	if l.log == nil {
		l.log, err = os.Create(filepath.Join(l.dir, "driver.log"))
		must(l, err)
	}
	l.driver = exec.Command("nsenter", "-t", strings.TrimSpace(string(pid)), "-m", "-n", "--",
		l.patchbayd, "docker", "--plugins", l.plugins, "--data-root", filepath.Join(l.dir, l.name, "data-"+l.kind), "--grace", "1s")
	l.driver.Stderr = l.log
	must(l, l.driver.Start())
	for range 100 {
		if _, err := exec.Command(l.script, "in", l.name, "test", "-S", "/run/docker/plugins/patchbay.sock").Output(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	l.Fatal("the driver does not come")
}

// killDriver is kill -9; its socket stays, as one of systemd's would.
func (l *lab) killDriver() {
	l.Helper()
	must(l, l.driver.Process.Kill())
	_ = l.driver.Wait()
}

func (l *lab) stopDriver() {
	_ = l.driver.Process.Signal(unix.SIGTERM)
	_ = l.driver.Wait()
	if l.Failed() {
		text, _ := os.ReadFile(l.log.Name())
		l.Logf("driver:\n%s", text)
	}
}

// conf writes a configuration.
func (l *lab) conf(name, text string) {
	l.Helper()
	cmd := exec.Command(l.script, "in", l.name, "sh", "-c", "mkdir -p /etc/cni/net.d; cat > /etc/cni/net.d/"+name+".conflist")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.Fatalf("%v: %s", err, out)
	}
}

// left is what stands of attachments: links, state, addresses, records.
func (l *lab) left() string {
	l.Helper()
	return strings.TrimSpace(l.in("sh", "-c", `ip -o link | grep -E 'veth|cni[0-9a-f]{10}' | grep -v docker0
		find /var/lib/patchbay/docker/endpoints /var/lib/patchbay/docker/leases /var/lib/patchbay/docker/cache /run/patchbay/attachments -type f
		ls /run/patchbay/docker/netns
		find /var/lib/cni/networks -name '*[.:]*' ! -name 'last_*'; true`))
}

// gone waits until nothing is left.
func (l *lab) gone(when string) {
	l.Helper()
	left := ""
	for range 50 {
		if left = l.left(); left == "" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.Errorf("%s: left behind:\n%s", when, left)
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	var out, said bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, &out, &said)
	}
	return strings.TrimSpace(out.String())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
