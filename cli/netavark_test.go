// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
)

// netavarkConf publishes ports, allocates addresses of both families and has facts of the firewall.
const netavarkConf = `{"cniVersion": "1.0.0", "name": "killed", "plugins": [
  {"type": "bridge", "bridge": "pbkill0", "isDefaultGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.8.0/24"}], [{"subnet": "fd77:8::/64"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}`

const netavarkCall = `{"container_id": "killedcontainer", "container_name": "c", "network": {"name": "killed"},
  "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": 10008, "protocol": "tcp,udp", "range": 2}], "network_options": {"interface_name": "eth0"}}`

// TestNetavarkKilled kills setups and teardowns at random moments, also a setup after a killed setup.
// podman calls no teardown after a failed setup, and never repeats one. So each of these must remove
// everything: a teardown, the next setup with its teardown, and gc.
func TestNetavarkKilled(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "killed.conflist"), []byte(netavarkConf), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &netavarkCaller{t: t, dir: dir}
	c.life(0) // the bridge and the standing rules stay
	before := leak.Must(t, leak.Dirs()...)
	setups, teardowns := nettest.NewKills(t, "setup"), nettest.NewKills(t, "teardown")
	tries := draw.Number(t, "PATCHBAY_CLI_KILLS", 6, 50)
	for n := 1; setups.More(tries) || teardowns.More(tries); n++ {
		ns, kills, call := c.namespace(n), setups, "setup"
		if n%2 == 0 {
			c.run(time.Minute, "setup", ns)
			kills, call = teardowns, "teardown"
		}
		died := kills.Try(func(after time.Duration) bool { return c.run(after, call, ns) })
		if err := netns.Delete(ns); err != nil {
			t.Fatal(err)
		}
		switch n % 3 {
		case 0:
			c.run(time.Minute, "teardown", ns)
		case 1:
			c.life(n)
		case 2:
			c.run(time.Minute, "gc", "--apply", "--grace", "0s")
		}
		if left := leak.Must(t, leak.Dirs()...).Beyond(before).Without(leak.Standing); len(left) > 0 {
			t.Fatalf("try %d, killed in %s: %v: left:\n%s", n, call, died, left)
		}
	}
}

// netavarkCaller makes netavark's calls in processes of their own.
type netavarkCaller struct {
	t   *testing.T
	dir string // of the networks
}

func (c *netavarkCaller) namespace(n int) string {
	c.t.Helper()
	ns := fmt.Sprintf("/run/netns/killed-%d", n)
	if err := netns.Create(ns); err != nil {
		c.t.Fatal(err)
	}
	return ns
}

// life is a container that is not killed.
func (c *netavarkCaller) life(n int) {
	c.t.Helper()
	ns := c.namespace(n)
	c.run(time.Minute, "setup", ns)
	c.run(time.Minute, "teardown", ns)
	if err := netns.Delete(ns); err != nil {
		c.t.Fatal(err)
	}
}

// run runs the program and kills it after some time. It reports whether the program was still running.
func (c *netavarkCaller) run(after time.Duration, args ...string) (died bool) {
	c.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0], cmd.Stdin, cmd.Stdout, cmd.Stderr = "patchbay", strings.NewReader(netavarkCall), &out, &out
	cmd.Env = append(os.Environ(), "NETCONFPATH="+c.dir, "CNI_PATH="+c.dir)
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return true
	}
	if err != nil {
		c.t.Fatalf("%q: %v: %s", args, err, &out)
	}
	return false
}
