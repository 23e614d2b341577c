// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/netns"
)

// furnish gives the lab IPv4 and IPv6 addresses, the directories of a real host, and a namespace
// that plays the outside.
func (l *Lab) furnish() {
	l.Helper()
	l.In("sh", "-ec", `chmod 755 /var/lib/patchbay /run/patchbay /var/lib/cni /run/cni /etc/cni
		ip -6 addr add `+Host6+`/64 dev out0 nodad
		ip netns add `+outside+`
		ip link add p-out type veth peer name eth0 netns `+outside+`
		ip link set p-out master out0 up
		ip -n `+outside+` link set lo up
		ip -n `+outside+` addr add `+Outside4+`/24 dev eth0
		ip -n `+outside+` -6 addr add `+Outside6+`/64 dev eth0 nodad
		ip -n `+outside+` link set eth0 up
		ip -6 route add default via `+Outside6+`
		nsenter --net=/run/netns/`+outside+` busybox httpd -p 80`)
}

// lab runs the script that manages dockerds.
func (l *Lab) lab(args ...string) string {
	l.Helper()
	out, err := l.try(append([]string{l.script}, args...)...)
	if err != nil {
		l.Fatal(err)
	}
	return out
}

// try runs a command of that script and returns its output.
func (l *Lab) try(argv ...string) (string, error) {
	var out, stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = l.env, &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(argv[1:], " "), err, &out, &stderr)
	}
	return strings.TrimSpace(out.String()), nil
}

// Up starts the dockerd, for the first time or after KillDocker.
func (l *Lab) Up(args ...string) {
	l.Helper()
	l.lab(append([]string{"up", l.name, l.Kind}, args...)...)
}

// TryUp works like Up, but may fail.
func (l *Lab) TryUp(args ...string) (string, error) {
	return l.try(append([]string{l.script, "up", l.name, l.Kind}, args...)...)
}

// In runs a command in dockerd's namespaces and returns its output. The command must succeed.
func (l *Lab) In(argv ...string) string {
	l.Helper()
	return l.lab(append([]string{"in", l.name}, argv...)...)
}

// Sh runs a shell script in dockerd's namespaces and ignores its exit status.
func (l *Lab) Sh(script string) string {
	l.Helper()
	return l.In("sh", "-c", "{ "+script+"\n} 2>&1; true")
}

func (l *Lab) ok(argv ...string) bool {
	_, err := l.try(append([]string{l.script, "in", l.name}, argv...)...)
	return err == nil
}

// Docker runs the docker client and returns its output. The client must succeed.
func (l *Lab) Docker(args ...string) string {
	l.Helper()
	return l.lab(append([]string{"docker", l.name}, args...)...)
}

// TryDocker works like Docker, but may fail.
func (l *Lab) TryDocker(args ...string) (string, error) {
	return l.try(append([]string{l.script, "docker", l.name}, args...)...)
}

// Refused works like Docker, but must fail; it returns the error text.
func (l *Lab) Refused(args ...string) string {
	l.Helper()
	out, err := l.TryDocker(args...)
	if err == nil {
		l.Errorf("docker %v worked: %s", args, out)
		return out
	}
	return err.Error()
}

// Do runs fn on a thread in the dockerd's network namespace.
func (l *Lab) Do(fn func() error) error {
	l.Helper()
	ns, err := netns.Open(l.Here())
	must(l, err)
	defer ns.Close()
	return ns.Do(fn)
}

// Conf writes a CNI configuration.
func (l *Lab) Conf(name, text string) {
	l.Helper()
	l.Write("/etc/cni/net.d/"+name+".conflist", text)
}

// Write makes a file inside the lab. The lab mounts its own directories, so the machine's files do
// not change.
func (l *Lab) Write(path, text string) {
	l.Helper()
	cmd := l.Inside("sh", "-c", `mkdir -p "$(dirname "$0")"; cat > "$0"`, path)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.Fatalf("write %s: %v: %s", path, err, out)
	}
}

// Dir returns a directory on the machine that exists as long as the lab.
func (l *Lab) Dir(name string) string {
	l.Helper()
	dir := l.dir + "/" + name
	must(l, os.MkdirAll(dir, 0o755))
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
