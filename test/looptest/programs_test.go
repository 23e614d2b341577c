// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package looptest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = endpointtest.Must

// host is a node with all programs installed.
type host struct {
	*endpointtest.World
	dirs      []string // CNI_PATH: patchbay's plugins, patchbay-cnm's
	confs     string   // the networks of patchbayd
	patchbayd string
	daemon    *exec.Cmd
	port      int // the last port that a container served
}

// podnet is the network at the end of the loop.
const podnet = `{"cniVersion":"1.1.0","name":"podnet","plugins":[
	{"type":"bridge","bridge":"loop0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.92.0.0/24"}],[{"subnet":"fd92::/64"}]],
	 "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"tuning","sysctl":{"net.core.somaxconn":"777"}}]}`

// newHost installs the plugins as an operator does, and starts patchbayd.
func newHost(t *testing.T) *host {
	h := &host{
		World: endpointtest.New(t, &cnmplugin.Plugin), confs: t.TempDir(),
		dirs: []string{reftest.Ours(t), filepath.Join(t.TempDir(), "plugins")}, patchbayd: reftest.Daemon(t),
	}
	drivers, err := reftest.Program("patchbay-cnm")
	must(t, err)
	if out, err := exec.Command(drivers, "install", h.dirs[1]).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(t, os.WriteFile(filepath.Join(h.confs, "podnet.conflist"), []byte(podnet), 0o600))
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	t.Cleanup(h.kill)
	h.start()
	return h
}

// start starts `patchbayd docker`, with patchbay's plugins or with plugins of other directories,
// and waits until it answers.
func (h *host) start(plugins ...string) {
	h.Helper()
	if len(plugins) == 0 {
		plugins = h.dirs[:1]
	}
	h.daemon = exec.Command(h.patchbayd, "docker", "--plugins", strings.Join(plugins, ":"), "--conf-dir", h.confs, "--grace", "1h")
	out := &strings.Builder{}
	h.daemon.Stdout, h.daemon.Stderr = out, out
	must(h, h.daemon.Start())
	at := cnm.DriverAddr{URL: "unix://" + filepath.Join(cnm.SocketDir, "patchbay.sock")}
	c, err := cnm.NewClient(at, cnm.ClientOptions{Patience: time.Minute})
	must(h, err)
	if _, err := c.Activate(context.Background()); err != nil {
		h.kill()
		h.Fatalf("%v\n%s", err, out)
	}
}

// kill kills patchbayd, as a crash would.
func (h *host) kill() {
	if h.daemon != nil {
		h.daemon.Process.Kill() //nolint:errcheck // it may have ended
		h.daemon.Wait()         //nolint:errcheck // killed
		h.daemon = nil
	}
}
