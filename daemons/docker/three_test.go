// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
)

// three has networks of three kinds.
type three struct {
	*node
	networks [3]string
}

func newThree(t *testing.T) *three {
	t.Helper()
	second := strings.NewReplacer("10.91", "10.92", "fd91", "fd92").Replace(macvlanNet)
	third := strings.NewReplacer("10.91", "10.93", "fd91", "fd93").Replace(ptpNet)
	w := &three{node: newNode(t, portNet, second, third)}
	w.parent("parent0")
	w.before = leak.Must(t)
	for i, name := range []string{"ports", "macnet", "ptpnet"} {
		w.networks[i] = w.network(name)
	}
	return w
}

// life connects a container to all networks, and disconnects it in another order. Any call may fail.
func (w *three) life(key string) (all []*container, err error) {
	for i, network := range w.networks {
		r := run{network: network, key: key, notGW: i > 0}
		if i == 0 {
			r.ports = []cnm.PortBinding{tcp(80, 8080, 8080)}
		}
		c, err := w.begin(r)
		if err != nil {
			return all, err
		}
		all = append(all, c)
		if err := c.joins(r); err != nil {
			return all, err
		}
	}
	for _, i := range []int{1, 0, 2} {
		if err := all[i].leave(); err != nil {
			return all, err
		}
		all[i].unplace()
		if err := all[i].delete(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// A container is on three networks, and the driver is killed at each step. Then dockerd ends with the
// container, and nothing may be left.
func TestKilledOnThreeNetworks(t *testing.T) {
	w := newThree(t)
	w.stop()
	kills(t, 0, w.killedAt)
	w.boot()
}

func (w *three) killedAt(step int) (killed bool) {
	w.Helper()
	cmd := w.child(step)
	key := w.sandbox()
	_, err := w.life(key)
	if err == nil || !cnm.Unanswered(err) {
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
	if err != nil && !cnm.Unanswered(err) {
		w.Fatalf("step %d: the driver lives: %v", step, err)
	}
	w.boot()
	defer w.stop()
	must(w, netns.Delete(key))
	if _, err := w.driver.sweepOnce(w.ctx()); err != nil {
		w.Errorf("step %d: %v", step, err)
	}
	w.nothing(fmt.Sprintf("step %d (%v)", step, err))
	return err != nil
}

// Somebody empties /run/patchbay while a container runs. Docker's next calls still remove everything.
func TestRunDirectoryLost(t *testing.T) {
	for _, running := range []bool{false, true} { // whether the container goes on while it is disconnected
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			w := newThree(t)
			key := w.sandbox()
			var all []*container
			for i, network := range w.networks {
				all = append(all, w.mustStart(run{network: network, key: key, notGW: i > 0}))
			}
			must(t, unix.Unmount(w.opts.Paths.Holds(), unix.MNT_DETACH)) // the holding namespaces end
			must(t, os.RemoveAll(w.opts.Paths.Run))
			w.mustStart(run{network: w.networks[0]}).stop(true) // a container that comes later
			for _, c := range all {
				must(t, c.leave())
				if running {
					c.unplace()
				} else {
					must(t, netns.Delete(key))
				}
				must(t, c.delete())
			}
			w.nothing("after the containers")
		})
	}
}
