// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// killAt names a step. A process of the plugin gets SIGKILL before that step.
const killAt = "CNMTEST_KILL_AT"

func TestMain(m *testing.M) {
	all := []*plugin.Plugin{&Plugin, &cnmipam.Plugin, &hostlocal.Plugin}
	if at, err := strconv.Atoi(os.Getenv(killAt)); err == nil && filepath.Base(os.Args[0]) == name {
		s := plugin.NewSession(all)
		n := 0
		s.Fault = func(string) error {
			if n++; n == at {
				syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // dead
			}
			return nil
		}
		os.Exit(plugin.Run(context.Background(), &Plugin, s, plugin.Stdio{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
	}
	plugintest.Main(m, all...)
}

// TestKilledAtEveryStep kills an ADD before each of its steps in turn, once with a new network
// and once in an existing one. DEL or a GC takes everything back. What is left until then does
// not disturb the next ADD.
func TestKilledAtEveryStep(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	dir := plugintest.Install(t, &Plugin, &cnmipam.Plugin)
	p, gc := l.Pod("x", both), l.Pod("gc", both)
	for _, fresh := range []bool{true, false} {
		for step := 1; ; step += stride(t, 3) {
			if fresh {
				l.reset(gc, "dies after")
			} else {
				endpointtest.Must(t, p.Do(spec.Add))
				endpointtest.Must(t, p.Do(spec.Del))
			}
			killed := killedAdd(t, dir, p, step)
			what := fmt.Sprintf("killed at step %d (new network: %v)", step, fresh)
			if step%2 == 0 {
				endpointtest.Must(t, l.gc(p, ""))
			}
			endpointtest.Must(t, p.Do(spec.Del)) // the runtime sends this DEL whether or not a GC came before
			l.clean(what)
			if n := l.driver.Addresses() - l.driver.Pools(); n > 0 {
				t.Errorf("%s: %d addresses are out besides the gateways", what, n)
			}
			if !killed {
				if step < 10 {
					t.Errorf("an ADD has %d steps only", step-1)
				}
				break
			}
		}
	}
}

// stride is the distance between two steps or calls at which a test disturbs the plugin. In `make test`
// it is usual, and larger with -short, for emulated machines.
func stride(t *testing.T, usual int) int {
	t.Helper()
	if testing.Short() {
		return 5
	}
	return draw.Number(t, "PATCHBAY_CNM_STRIDE", usual, 1)
}

// killedAdd runs an ADD that may be killed, and reports whether it was killed.
func killedAdd(t *testing.T, dir string, p *endpointtest.Pod, step int) bool {
	t.Helper()
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Add, []string{dir}, []byte("{"+p.Conf+"}")
	cmd := exec.Command(filepath.Join(dir, name))
	cmd.Env = append(call.Environ(), fmt.Sprintf("%s=%d", killAt, step))
	cmd.Stdin = strings.NewReader(string(call.Config))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("step %d: %v\n%s", step, err, out)
	}
	return true
}

// TestKilledInDel kills a DEL after each of its calls in turn, before it gets the driver's
// answer. Before the DEL is repeated or a GC runs, another container may get what the DEL gave
// back. That container must keep it.
func TestKilledInDel(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	dir := plugintest.Install(t, &Plugin, &cnmipam.Plugin)
	gc := l.Pod("gc", both)
	n := 0
	for _, method := range onDel {
		for _, again := range []string{"a DEL", "a GC"} {
			what := fmt.Sprintf("killed after %s, then %s", method, again)
			n++
			p := l.Pod(fmt.Sprintf("p%d", n), both)
			endpointtest.Must(t, p.Do(spec.Add))
			l.killedDel(dir, p, method)
			q := l.Pod(fmt.Sprintf("q%d", n), both)
			endpointtest.Must(t, q.Do(spec.Add))
			if again == "a GC" {
				endpointtest.Must(t, l.gc(gc, "", q.Call.ContainerID))
			}
			endpointtest.Must(t, p.Do(spec.Del))
			endpointtest.Must(t, q.Do(spec.Check))
			l.Want(what+": addresses out", fmt.Sprint(l.driver.Addresses()), "4")
			l.talks(q, what)
			endpointtest.Must(t, q.Do(spec.Del))
			l.clean(what)
			l.Want(what+": addresses out in the end", fmt.Sprint(l.driver.Addresses()), "2")
		}
	}
}

// killedDel runs a DEL and kills it when the driver has carried out a method.
func (l *lab) killedDel(dir string, p *endpointtest.Pod, method string) {
	l.Helper()
	call := p.Call
	call.Verb, call.Path, call.Config = spec.Del, []string{dir}, []byte("{"+p.Conf+"}")
	cmd := exec.Command(filepath.Join(dir, name))
	cmd.Env = append(call.Environ(), killAt+"=0")
	cmd.Stdin = strings.NewReader(string(call.Config))
	l.srv.Fault(method, 1, l.srv.DoAnd(func(http.ResponseWriter, *http.Request) {
		cmd.Process.Kill() //nolint:errcheck // the process waits for our answer
	}))
	out, err := cmd.CombinedOutput()
	l.srv.Well()
	if err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		l.Fatalf("%s: %v\n%s", method, err, out)
	}
}
