// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// lab is a node with a driver called lab.
type lab struct {
	*endpointtest.World
	srv    *cnmtest.Server
	driver *cnmtest.Driver
	before leak.State
	port   int // the port that was used last
}

// newLab starts the driver, and stores the state with which left compares.
func newLab(t *testing.T, d *cnmtest.Driver, more ...*plugin.Plugin) *lab {
	runtime.LockOSThread() // leaks are looked for in the thread's namespace
	t.Cleanup(runtime.UnlockOSThread)
	plugins := append([]*plugin.Plugin{&Plugin, &cnmipam.Plugin, &hostlocal.Plugin, &static.Plugin}, more...)
	l := &lab{World: endpointtest.New(t, plugins...), driver: d, port: 9000}
	t.Cleanup(func() { endpointtest.Must(t, os.RemoveAll("/var/lib/patchbay")) })
	t.Cleanup(l.removeBridges)
	l.srv = cnmtest.Start(t, "lab", d)
	l.before = leak.Must(t)
	return l
}

// removeBridges deletes the bridges of the driver's networks.
func (l *lab) removeBridges() {
	links, err := l.HostConn().LinkList()
	endpointtest.Must(l.T, err)
	for _, link := range links {
		if link.Type() == "bridge" && strings.HasPrefix(link.Attrs().Name, "cn") {
			endpointtest.Must(l.T, l.HostConn().LinkDel(link))
		}
	}
}

// left returns the objects that were not there at the start, without the network's own files.
func (l *lab) left() leak.State {
	l.Helper()
	return leak.Must(l.T).Beyond(l.before).Without(leak.Standing).Without(func(line string) bool {
		return strings.HasPrefix(line, leaves[0]) || strings.HasPrefix(line, leaves[1])
	})
}

// clean checks that nothing is left, on the node and at the driver.
func (l *lab) clean(when string) {
	l.Helper()
	left := l.left()
	for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); left = l.left() {
		time.Sleep(10 * time.Millisecond) // the kernel ends a namespace some time after its path is gone
	}
	if len(left) > 0 {
		l.Errorf("%s: left behind:\n%s", when, left)
	}
	if n := l.driver.Endpoints(); n > 0 {
		l.Errorf("%s: the driver has %d endpoints", when, n)
	}
	if n := len(l.driver.Opened()); n > 0 {
		l.Errorf("%s: the driver has %d endpoints open", when, n)
	}
}

// both is a configuration that uses the driver for network and IPAM.
const both = `"driver":"lab","timeout":20,"ipam":{"type":"cnm-ipam","driver":"lab","timeout":20,"pools":[{"subnet":"10.88.0.0/24"},{"subnet":"fd88::/64"}]}`

// hurried returns the configuration `both` with a short timeout: a second and twice the time that
// an ADD takes at present. A working driver answers within this time. hurried measures an ADD of
// the pod p, and uses the pod gc for a GC.
func (l *lab) hurried(p, gc *endpointtest.Pod) (conf string, timeout time.Duration) {
	l.Helper()
	start := time.Now()
	endpointtest.Must(l.T, p.Do(spec.Add))
	timeout = (2*time.Since(start) + time.Second).Round(time.Second)
	endpointtest.Must(l.T, p.Do(spec.Del))
	l.reset(gc, "well")
	return strings.ReplaceAll(both, `"timeout":20`, fmt.Sprintf(`"timeout":%d`, timeout/time.Second)), timeout
}

// gc calls GC with the living containers as the valid ones.
func (l *lab) gc(p *endpointtest.Pod, more string, living ...string) error {
	l.Helper()
	var list []string
	for _, id := range living {
		list = append(list, fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, id))
	}
	q := *p
	q.Conf = p.Conf + more + `,"cni.dev/valid-attachments":[` + strings.Join(list, ",") + `]`
	q.Result = nil
	q.Call.ContainerID, q.Call.IfName, q.Call.NetNS = "", "", ""
	return q.Do(spec.GC)
}

// attachments returns the paths of the records.
func (l *lab) attachments() []string {
	l.Helper()
	list, err := filepath.Glob("/var/lib/patchbay/cnm/attachments/*/*")
	endpointtest.Must(l.T, err)
	return list
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

// forget removes our state, not the driver's.
func (l *lab) forget() {
	l.Helper()
	endpointtest.Must(l.T, os.RemoveAll("/var/lib/patchbay"))
}

// boot writes another boot's id into all state files, and empties /run.
func (l *lab) boot() {
	l.Helper()
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	endpointtest.Must(l.T, err)
	files, err := filepath.Glob("/var/lib/patchbay/cnm/*/*.json")
	endpointtest.Must(l.T, err)
	for _, path := range append(files, l.attachments()...) {
		data, err := os.ReadFile(path)
		endpointtest.Must(l.T, err)
		data = bytes.ReplaceAll(data, bytes.TrimSpace(now), []byte("another boot"))
		endpointtest.Must(l.T, os.WriteFile(path, data, 0o600))
	}
	endpointtest.Must(l.T, os.RemoveAll("/run/patchbay"))
}
