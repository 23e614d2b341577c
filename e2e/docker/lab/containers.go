// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Start runs a container that answers on port 80 and else sleeps.
func (l *Lab) Start(name, network string, more ...string) {
	l.Helper()
	args := append([]string{"run", "-d", "--name", name, "--network", network}, more...)
	l.Docker(append(args, "bb", "httpd", "-f", "-p", "80")...)
}

// Remove removes containers, running or not.
func (l *Lab) Remove(names ...string) {
	l.Helper()
	l.Docker(append([]string{"rm", "-f"}, names...)...)
}

// Exec runs a command in a container.
func (l *Lab) Exec(name string, argv ...string) string {
	l.Helper()
	return l.Docker(append([]string{"exec", name}, argv...)...)
}

// Inspect is a field of a container's endpoint.
func (l *Lab) Inspect(name, network, field string) string {
	l.Helper()
	return l.Docker("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, field))
}

// pingTries is how many echoes may get lost: the first may, while neighbours are
// looked for.
const pingTries = 3

// Ping asks for an echo from a container, by name or address.
func (l *Lab) Ping(from, to string) {
	l.Helper()
	if out := l.Docker("exec", from, "sh", "-c", ping(to)); !strings.Contains(out, "bytes from") {
		l.Errorf("%s does not reach %s: %s", from, to, out)
	}
}

// PingFrom is Ping from anything that a command leads to.
func (l *Lab) PingFrom(who string, enter []string, to string) {
	l.Helper()
	if out := l.In(append(enter, "/bin/busybox", "sh", "-c", ping(to))...); !strings.Contains(out, "bytes from") {
		l.Errorf("%s does not reach %s: %s", who, to, out)
	}
}

func ping(to string) string {
	return fmt.Sprintf("for i in $(seq %d); do ping -c1 -W2 %s && break; done 2>&1; true", pingTries, to)
}

// Fetch asks a port for a page until it answers; enter leads to where from, and
// is nil for the host.
func (l *Lab) Fetch(enter []string, host, port string) {
	l.Helper()
	out := ""
	for end := time.Now().Add(pollTime / 2); time.Now().Before(end); time.Sleep(2 * pollEvery) {
		if out = l.get(enter, host, port); strings.Contains(out, "HTTP/1") {
			return
		}
	}
	l.Errorf("%v: %s says %q", enter, net.JoinHostPort(host, port), out)
}

// Closed fails the test when a port answers.
func (l *Lab) Closed(enter []string, host, port string) {
	l.Helper()
	if out := l.get(enter, host, port); strings.Contains(out, "HTTP/1") {
		l.Errorf("%v: %s answers", enter, net.JoinHostPort(host, port))
	}
}

func (l *Lab) get(enter []string, host, port string) string {
	l.Helper()
	script := fmt.Sprintf(`(printf 'GET /ok HTTP/1.0\r\n\r\n'; sleep 0.3) | busybox nc -w 2 %s %s; true`, host, port)
	return l.In(append(enter, "busybox", "sh", "-c", script)...)
}

// FromOutside leads to the outside world.
func FromOutside() []string { return []string{"ip", "netns", "exec", Outside} }

// From leads to the inside of a container's network, with the host's files.
func (l *Lab) From(container string) []string {
	l.Helper()
	pid := l.Docker("inspect", container, "--format", "{{.State.Pid}}")
	return []string{"nsenter", "-t", pid, "-n", "--"}
}

// Program is something that runs beside the dockerd until it is stopped.
type Program struct {
	l   *Lab
	cmd *exec.Cmd
	out bytes.Buffer
}

// Run starts a program beside the dockerd.
func (l *Lab) Run(argv ...string) *Program {
	l.Helper()
	p := &Program{l: l, cmd: l.Inside(argv...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	must(l, p.cmd.Start())
	return p
}

// Stop ends it, and shows what it said if the test failed.
func (p *Program) Stop() {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	_ = p.cmd.Wait()
	if p.l.Failed() {
		p.l.Logf("%v:\n%s", p.cmd.Args, &p.out)
	}
}

// Dnsmasq is a DHCP server in the outside world. It is a copy in a place that no
// AppArmor profile knows.
func (l *Lab) Dnsmasq(args ...string) *Program {
	l.Helper()
	copied := l.Dir("dnsmasq") + "/dnsmasq"
	l.In("sh", "-ec", `cp "$(command -v dnsmasq)" "$0"`, copied)
	argv := append(FromOutside(), copied, "--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping", "--log-facility=-", "--log-dhcp",
		"--no-resolv", "--pid-file="+l.Dir("dnsmasq")+"/pid", "--dhcp-leasefile="+l.Dir("dnsmasq")+"/leases", "--interface=eth0", "--bind-interfaces",
		"--dhcp-authoritative")
	return l.Run(append(argv, args...)...)
}

// Keeper is patchbayd dhcp.
func (l *Lab) Keeper(args ...string) *Program {
	l.Helper()
	p := l.Run(append([]string{l.Patchbayd, "dhcp"}, args...)...)
	l.Eventually("the keeper's socket", func() bool { return l.ok("test", "-S", "/run/cni/dhcp.sock") })
	return p
}
