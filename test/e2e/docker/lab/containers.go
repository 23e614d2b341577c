// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// Start runs a container that answers on port 80 and otherwise sleeps. It is stopped by
// SIGKILL: the first process of a container ignores other signals unless it handles them,
// and Docker would wait for ten seconds.
func (l *Lab) Start(name, network string, more ...string) {
	l.Helper()
	args := append([]string{"run", "-d", "--name", name, "--network", network, "--stop-signal", "KILL"}, more...)
	l.Docker(append(args, "bb", "httpd", "-f", "-p", "80")...)
}

// Remove removes containers, running or not.
func (l *Lab) Remove(names ...string) {
	l.Helper()
	l.Docker(append([]string{"rm", "-f"}, names...)...)
}

// Tidy removes all containers after a failed test.
func (l *Lab) Tidy() {
	if l.Failed() {
		l.Sh("docker -H " + l.host() + " ps -aq | xargs -r docker -H " + l.host() + " rm -f")
	}
}

// host returns the address of dockerd's API, as DOCKER_HOST takes it.
func (l *Lab) host() string { return "unix://" + l.dir + "/" + l.name + "/docker.sock" }

// Exec runs a command in a container.
func (l *Lab) Exec(name string, argv ...string) string {
	l.Helper()
	return l.Docker(append([]string{"exec", name}, argv...)...)
}

// Inspect returns a field of a container's endpoint.
func (l *Lab) Inspect(name, network, field string) string {
	l.Helper()
	return l.Docker("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, field))
}

// pingTries is the number of echo requests: the first may get lost during neighbour
// discovery.
const pingTries = 3

// Ping sends an echo request from a container to a name or address.
func (l *Lab) Ping(from, to string) {
	l.Helper()
	if out := l.Docker("exec", from, "sh", "-c", ping(to)); !strings.Contains(out, "bytes from") {
		l.Errorf("%s does not reach %s: %s", from, to, out)
	}
}

// PingFrom works like Ping, from a namespace.
func (l *Lab) PingFrom(path, to string) {
	l.Helper()
	if out := l.lab("in", l.name, "nsenter", "--net="+path, "--", "/bin/busybox", "sh", "-c", ping(to)); !strings.Contains(out, "bytes from") {
		l.Errorf("%s does not reach %s: %s", path, to, out)
	}
}

func ping(to string) string {
	return fmt.Sprintf("for i in $(seq %d); do ping -c1 -W2 %s && break; done 2>&1; true", pingTries, to)
}

// Fetch requests a page from a port until it answers; path is the client's namespace.
func (l *Lab) Fetch(path, host, port string) {
	l.Helper()
	var err error
	for end := time.Now().Add(pollTime / 3); time.Now().Before(end); time.Sleep(pollEvery) {
		if err = get(path, host, port); err == nil {
			return
		}
	}
	l.Errorf("from %s: %v", path, err)
}

// Closed fails the test when a port answers.
func (l *Lab) Closed(path, host, port string) {
	l.Helper()
	if get(path, host, port) == nil {
		l.Errorf("from %s: %s answers", path, net.JoinHostPort(host, port))
	}
}

// getTime bounds one try.
const getTime = 2 * time.Second

func get(path, host, port string) error {
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	var conn net.Conn
	if err := ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(host, port), getTime)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(getTime)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1") {
		return fmt.Errorf("%s says %q: %w", conn.RemoteAddr(), answer, err)
	}
	return nil
}

// Here returns the path of dockerd's network namespace.
func (l *Lab) Here() string { return "/proc/" + l.holder() + "/ns/net" }

// Outside returns the path of the namespace that plays the outside network.
func (l *Lab) Outside() string { return "/proc/" + l.holder() + "/root/run/netns/" + outside }

// Of returns the path of a container's network namespace.
func (l *Lab) Of(container string) string {
	l.Helper()
	return "/proc/" + l.Docker("inspect", container, "--format", "{{.State.Pid}}") + "/ns/net"
}

// Program is a program that runs beside the dockerd until it is stopped.
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

// Stop ends the program, and shows its output if the test failed.
func (p *Program) Stop() {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	_ = p.cmd.Wait()
	if p.l.Failed() {
		p.l.Logf("%v:\n%s", p.cmd.Args, &p.out)
	}
}

// Wait waits until the program ends.
func (p *Program) Wait() { _ = p.cmd.Wait() }

// Dnsmasq starts a DHCP server outside. It runs a copy of the program, because Debian's AppArmor
// profile confines the original path.
func (l *Lab) Dnsmasq(args ...string) *Program {
	l.Helper()
	copied := l.Dir("dnsmasq") + "/dnsmasq"
	l.In("sh", "-ec", `cp "$(command -v dnsmasq)" "$0"`, copied)
	argv := append([]string{"nsenter", "--net=/run/netns/" + outside, "--"}, copied, "--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping", "--log-facility=-", "--log-dhcp",
		"--no-resolv", "--pid-file="+l.Dir("dnsmasq")+"/pid", "--dhcp-leasefile="+l.Dir("dnsmasq")+"/leases", "--interface=eth0", "--bind-interfaces",
		"--dhcp-authoritative")
	return l.Run(append(argv, args...)...)
}

// Keeper starts patchbayd dhcp.
func (l *Lab) Keeper(args ...string) *Program {
	l.Helper()
	p := l.Run(append([]string{l.Patchbayd, "dhcp"}, args...)...)
	l.Eventually("the keeper's socket", func() bool { return l.ok("test", "-S", "/run/cni/dhcp.sock") })
	return p
}
