// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// load is what the callers of TestDeathsUnderLoad share.
type load struct {
	dir                string
	left               atomic.Int64 // calls that are still to be made
	killed, lost, done atomic.Int64 // callers that were killed, ADDs whose server died, ADDs with a result

	mu    sync.Mutex
	given map[netip.Addr]string // which container has an address
}

// TestDeathsUnderLoad has eight runtimes that attach and detach, while the server is killed at random moments and
// the plugins' processes at random steps or moments. A DEL always succeeds, no two containers have one address, and
// nothing is left.
func TestDeathsUnderLoad(t *testing.T) {
	before := leak.Must(t)
	l := &load{dir: install(t), given: make(map[netip.Addr]string)}
	calls := draw.Number(t, "PATCHBAY_RESIDENT_CALLS", 100, 1000)
	l.left.Store(int64(calls))
	seed, _ := draw.Seed(t)
	var all sync.WaitGroup
	for i := range 8 {
		r := &caller{load: l, t: t, name: fmt.Sprint("load", i), ns: nettest.NewNS(t, fmt.Sprint("load", i)), rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		r.kills = nettest.NewKills(t, r.name+"'s call")
		all.Go(r.run)
	}
	rnd, servers := rand.New(rand.NewPCG(seed, 8)), 0
	for ; l.left.Load() > 0; servers++ {
		s := serve(t, l.dir)
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		_ = s.cmd.Process.Kill() // it has not ended
		s.stop(t)
	}
	all.Wait()
	t.Logf("%d servers and %d callers were killed; %d ADDs were lost, %d had a result", servers, l.killed.Load(), l.lost.Load(), l.done.Load())
	if l.killed.Load() == 0 || l.done.Load() == 0 || l.lost.Load() == 0 && calls >= 1000 { // few may be lucky
		t.Error("that proves little")
	}
	os.Remove(handover.Path)
	leak.NoLeaks(t, before)
}

// caller is a runtime with one container after another.
type caller struct {
	*load
	t     *testing.T
	name  string
	ns    string
	rnd   *rand.Rand
	kills *nettest.Kills
}

func (r *caller) run() {
	for n := 0; r.left.Add(-2) >= 0; n++ {
		c := call{plugin: "bridge", verb: "ADD", id: fmt.Sprint(r.name, "-", n), netns: r.ns, input: bridgeConf("host-local")}
		if o, died := r.try(c); !died {
			r.judge(c.id, o)
		}
		c.verb = "DEL"
		r.release(c.id)
		if _, died := r.try(c); died {
			if o := c.run(r.t, r.dir); o.code != 0 {
				r.t.Errorf("DEL of %s: %+v", c.id, o)
			}
		}
		if nettest.HasLink(r.t, r.ns, "eth0") {
			r.t.Errorf("%s has its link after the DEL", c.id)
		}
	}
}

// judge checks what an ADD says.
func (r *caller) judge(id string, o outcome) {
	if o.code == 1 && strings.Contains(o.stdout, `"code": 11,`) && strings.Contains(o.stdout, "ended without an answer") {
		r.lost.Add(1)
		return
	}
	result, err := spec.ParseResult([]byte(o.stdout), "")
	if o.code != 0 || err != nil || len(result.IPs) != 1 || !nettest.HasLink(r.t, r.ns, "eth0") {
		r.t.Errorf("ADD of %s: %+v, %v", id, o, err)
		return
	}
	r.done.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	a := result.IPs[0].Address.Addr()
	if other := r.given[a]; other != "" {
		r.t.Errorf("%s and %s have %s", id, other, a)
	}
	r.given[a] = id
}

// release notes that a container gives its addresses back.
func (r *caller) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, of := range r.given {
		if of == id {
			delete(r.given, a)
		}
	}
}

// try makes a call. Its process may be killed: at a step, or at a moment, which is more often within the server's work.
func (r *caller) try(c call) (o outcome, died bool) {
	switch r.rnd.IntN(4) {
	case 0:
		o, died = r.until(c, r.rnd.IntN(30)) // a call that is handed over has 26 stops
	case 1:
		r.kills.Try(func(after time.Duration) bool {
			o, died = r.within(c, after)
			return died
		})
	default:
		o = c.run(r.t, r.dir)
	}
	if died {
		r.killed.Add(1)
	}
	if !died && c.verb == "DEL" && o.code != 0 {
		r.t.Errorf("DEL of %s: %+v", c.id, o)
	}
	return o, died
}

// within kills the process of a call after some time.
func (r *caller) within(c call, after time.Duration) (o outcome, died bool) {
	cmd, stdout := c.begin(r.t, r.dir)
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // its state is returned
	timer.Stop()
	return outcome{stdout: stdout.String(), code: cmd.ProcessState.ExitCode()}, !cmd.ProcessState.Exited()
}

// until kills the process of a call at the begin or the end of a system call, after so many of them.
func (r *caller) until(c call, stops int) (o outcome, died bool) {
	runtime.LockOSThread() // ptrace(2) belongs to a thread
	defer runtime.UnlockOSThread()
	cmd, stdout := c.process(r.dir), new(bytes.Buffer)
	cmd.Stdout = stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		r.t.Error(err)
		return o, true
	}
	r.follow(cmd.Process.Pid, stops)
	_ = cmd.Wait() // its state is returned
	return outcome{stdout: stdout.String(), code: cmd.ProcessState.ExitCode()}, !cmd.ProcessState.Exited()
}

// follow kills a process after so many stops, unless it ends before.
func (r *caller) follow(pid, stops int) {
	for n := -1; ; n++ { // the first stop is the begin of the program
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			r.t.Errorf("%v, %v", err, status)
			return
		}
		if status.TrapCause() == syscall.PTRACE_EVENT_EXIT {
			_ = syscall.PtraceDetach(pid) // it ends, killed or not
			return
		}
		if n == stops {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it has not ended
			continue
		}
		if n < 0 {
			_ = syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACEEXIT) // if this fails, the next call does
		}
		signal := 0
		if status.StopSignal() != syscall.SIGTRAP {
			signal = int(status.StopSignal())
		}
		if err := syscall.PtraceSyscall(pid, signal); err != nil {
			r.t.Error(err)
			return
		}
	}
}
