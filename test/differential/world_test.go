// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	vnetns "github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// containerNS is where the container's namespace is bound. It is the same for both sides, because
// one side runs after the other.
const containerNS = "/run/netns/container"

// world is one node. It has a namespace for the host, in which the calling thread is, and one for
// a container.
type world struct {
	t         testing.TB
	dir       string // of the plugins
	host      vnetns.NsHandle
	container vnetns.NsHandle
}

// inWorld calls f on a thread in the host namespace of a new node whose state directories
// are empty. The thread, and with it the namespace, ends with f.
func inWorld(t testing.TB, dir string, f func(w *world)) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with us
		w, err := newWorld(t, dir)
		if err != nil {
			done <- err
			return
		}
		defer close(done)
		defer w.end()
		f(w)
	}()
	if err := <-done; err != nil {
		t.Fatalf("make a node: %v", err)
	}
}

func newWorld(t testing.TB, dir string) (*world, error) {
	if err := forget(); err != nil {
		return nil, err
	}
	if err := netns.Create(containerNS); err != nil {
		return nil, err
	}
	w := &world{t: t, dir: dir}
	var err error
	if w.container, err = vnetns.GetFromPath(containerNS); err != nil {
		return nil, err
	}
	if w.host, err = vnetns.New(); err != nil { // New also enters the namespace
		return nil, err
	}
	for _, ns := range []vnetns.NsHandle{w.container, w.host} {
		if err := w.enter(ns, quicken); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// quicken switches duplicate address detection off for new links, because the reference waits two
// seconds for it.
func quicken() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
}

// quickenAt switches duplicate address detection off in the namespace at a path.
func (w *world) quickenAt(path string) error {
	ns, err := vnetns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // a read-only descriptor
	return w.enter(ns, quicken)
}

// enter calls f in a namespace and returns to the host's.
func (w *world) enter(ns vnetns.NsHandle, f func() error) error {
	if err := vnetns.Set(ns); err != nil {
		return err
	}
	err := f()
	if back := vnetns.Set(w.host); back != nil {
		return back
	}
	return err
}

func (w *world) end() {
	w.container.Close()                               //nolint:errcheck // a read-only descriptor
	w.host.Close()                                    //nolint:errcheck // as above
	if err := netns.Delete(containerNS); err != nil { // even if a test removed it
		w.t.Error(err)
	}
}

// forget deletes the state that plugins keep in files. nettest.Main made these directories for
// this test alone.
func forget() error {
	for _, pattern := range []string{"/run/*", "/var/lib/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
			if path == "/run/netns" {
				continue
			}
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// call is one invocation of a plugin.
type call struct {
	plugin string
	verb   spec.Verb
	id     string
	netns  string
	ifname string
	args   string
	conf   map[string]any
}

// answer is the outcome of a call.
type answer struct {
	out  []byte
	fail *failure // nil when it succeeded
}

// failure is the error object, or the output in its place.
type failure struct {
	Code    int    `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
}

func (f *failure) Error() string {
	if f.Details == "" {
		return f.Msg
	}
	return f.Msg + "; " + f.Details
}

// run executes the plugin in the calling thread's namespace, as a runtime does.
func (w *world) run(c call) answer {
	conf, err := json.Marshal(c.conf)
	if err != nil {
		return answer{fail: &failure{Code: -1, Msg: err.Error()}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(w.dir, c.plugin))
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"CNI_COMMAND=" + string(c.verb), "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.netns,
		"CNI_IFNAME=" + c.ifname, "CNI_ARGS=" + c.args, "CNI_PATH=" + w.dir,
	}
	cmd.Dir, cmd.Stdin = "/", bytes.NewReader(conf)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		f := &failure{}
		if json.Unmarshal(stdout.Bytes(), f) != nil {
			f = &failure{Code: -1, Msg: fmt.Sprintf("%v: %.300s", err, stderr.Bytes())}
		}
		return answer{fail: f}
	}
	return answer{out: stdout.Bytes()}
}
