// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/plugin/all"
)

// The experiment account says where the time of an ADD goes. It runs our plugins in a program that
// notes the time before each step (test/bench/accounted), beside the bare calls.

// accountExperiment is the name of this experiment. It has its own page.
const accountExperiment = "account"

// accountEnv names the file of the notes.
const accountEnv = "PATCHBAY_BENCH_ACCOUNT"

// These are the chains of the account, by set.
var accountChains = map[string]string{ours: "full", oursOne: "full-one"}

// phase is what happens between two notes, or around them.
type phase struct {
	Plugin string        `json:"plugin"`
	Step   string        `json:"step"`
	Took   time.Duration `json:"took"`
}

func (l *lab) account() error {
	dir := l.path("accounted")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	program := filepath.Join(dir, "program")
	if err := goBuild(program, "./test/bench/accounted"); err != nil {
		return err
	}
	for _, p := range all.Plugins() {
		if err := os.Symlink("program", filepath.Join(dir, p.Name)); err != nil {
			return err
		}
	}
	for round := range l.pick(60, 5) + warmup {
		for _, set := range l.want(ours, oursOne, bare) {
			if err := l.accountOnce(set, dir, round >= warmup); err != nil {
				return err
			}
		}
	}
	return nil
}

// accountOnce measures one ADD. The bare calls have a node of their own.
func (l *lab) accountOnce(set, dir string, counts bool) error {
	l.plugins[accountExperiment] = dir
	if set == bare {
		rep, err := l.ask(bare, request{Op: "floor"})
		if err == nil && counts {
			l.results.AccountFloor = append(l.results.AccountFloor, rep.Cycle.Add)
		}
		return err
	}
	rep, err := l.ask(accountExperiment, request{Op: "account", Chain: accountChains[set]})
	if err == nil && counts {
		l.results.Account[set] = append(l.results.Account[set], rep.Phases)
	}
	return err
}

// account attaches a container, and returns the phases of its ADD.
func (w *worker) account(chain string) ([]phase, error) {
	l, err := w.list(chain, confVersion)
	if err != nil {
		return nil, err
	}
	ns, err := sandbox("cycle")
	if err != nil {
		return nil, err
	}
	caller := &accountant{DefaultExec: invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}, PluginDecoder: version.PluginDecoder{}}}
	cni := libcni.NewCNIConfig([]string{w.node.Plugins}, caller)
	ctx, rt := context.Background(), w.container(ns)
	if _, err := cni.AddNetworkList(ctx, l, rt); err != nil {
		return nil, err
	}
	phases := caller.phases
	return phases, cni.DelNetworkList(ctx, l, rt)
}

// accountant executes plugins, and reads what each has noted.
type accountant struct {
	invoke.DefaultExec
	phases []phase
}

// ExecPlugin implements invoke.Exec.
func (a *accountant) ExecPlugin(ctx context.Context, path string, conf []byte, env []string) ([]byte, error) {
	file := filepath.Join("/run", "account")
	began := monotonic()
	out, err := a.DefaultExec.ExecPlugin(ctx, path, conf, append(env, accountEnv+"="+file))
	ended := monotonic()
	if err != nil {
		return out, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return out, a.read(filepath.Base(path), string(text), began, ended)
}

// read adds the phases of one process.
func (a *accountant) read(name, notes string, began, ended int64) error {
	step := "exec and Go's start"
	for line := range strings.Lines(notes) {
		var at int64
		var next string
		if _, err := fmt.Sscanf(line, "%d %q", &at, &next); err != nil {
			return fmt.Errorf("read the note %q: %w", line, err)
		}
		a.phases = append(a.phases, phase{name, step, time.Duration(at - began)})
		step, began = next, at
	}
	a.phases = append(a.phases, phase{name, step, time.Duration(ended - began)})
	return nil
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail with this clock
	return now.Nano()
}

// writeAccount writes the page of this experiment.
func (r *results) writeAccount(w io.Writer) {
	fmt.Fprintf(w, "# Where the time of an ADD goes\n\n`go run ./test/bench -account` wrote this page on %s: %s, %d cores, Linux %s, %s. Each row is the time from one step to the next, in milliseconds: "+
		"median and quartiles of %d ADDs. The notes themselves take some microseconds each.\n\n", r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, len(r.Account[ours]))
	if r.Quick {
		fmt.Fprintf(w, "A quick run: too few rounds to be quoted.\n\n")
	}
	fmt.Fprintf(w, "The bare kernel calls of the same attachment, with one exec of an empty program, take %s ms%s.\n", ms(r.AccountFloor.wall(50)), spread(r.AccountFloor))
	for _, set := range []string{ours, oursOne} {
		if len(r.Account[set]) > 0 {
			fmt.Fprintf(w, "\n## %s\n\n| plugin | step | ms | quartiles |\n| --- | --- | --: | --- |\n", title(set))
			writePhases(w, r.Account[set])
		}
	}
	fmt.Fprint(w, aboveFloor)
}

// aboveFloor says what the account means. Profiles of 20,000 samples a second (perf record -e cpu-clock)
// showed the same.
const aboveFloor = `
## What remains above the floor, and why

The program of this page notes the time itself, and it starts without the routine of internal/handover, so its first step is 0.2 ms longer than ours.

- **The start and the end of each process** take the most, and all Go programs pay them: the kernel maps the program and answers 180 page faults of an
  empty one, Go's runtime asks the processor for its features (in a virtual machine each question goes to the hypervisor), and at the end the kernel
  removes the memory and ends three threads. Our program adds 60 page faults and the initialisation of its packages (0.15 ms; a third of it is
  regexp, which tuning's allow list needs). Only a process that stays avoids this ("resident" in [results.md](results.md)).
- **The first use of everything.** A process of a millisecond runs each function once, with cold caches. The same ADD in a process that stays
  needs less, although it does the same system calls.
- **Truth.** The records, the facts that attachments share, the look before each firewall transaction, the checks of the bridge's and the
  namespace's state: about 160 calls for files, half of them stat, at 1 to 4 µs each. The floor does none of this. It also does not undo anything.
- **One record for each plugin, not for each attachment.** Each takes 0.05 to 0.1 ms (docs/adr/0056 says why).

host-local alone takes 0.75 to 0.9 of the reference's time; the aim is 0.8. Called without libcni on an Intel processor, it takes 1.7 ms and the
reference 2.1 (2026-11-27). Of ours, 1.0 ms is the start and the end of an empty Go program, 0.3 is the start of our packages, and 0.4 is the
call. A program with host-local alone would start 0.1 ms faster, because it needs neither regexp nor D-Bus. We keep one program.

Beside many attachments the kernel takes longer for the same calls of ptp: it compares the gateway's address on all links, and looks for a
namespace's number among all numbers whenever it describes one end of a pair. So the growth of an ADD is compared with that of these calls.
`

// writePhases writes the medians. The steps of all rounds are the same; their names contain the names
// of a container's own objects, so those of the last round stand for all.
func writePhases(w io.Writer, rounds [][]phase) {
	last := rounds[len(rounds)-1]
	rounds = slices.DeleteFunc(slices.Clone(rounds), func(r []phase) bool { return len(r) != len(last) })
	total := make(sample, len(rounds))
	for i, p := range last {
		var s sample
		for n, r := range rounds {
			s = append(s, cost{Wall: r[i].Took})
			total[n].Wall += r[i].Took
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s-%s |\n", p.Plugin, p.Step, ms(s.wall(50)), ms(s.wall(25)), ms(s.wall(75)))
	}
	fmt.Fprintf(w, "| | all of %d rounds | %s | %s-%s |\n", len(total), ms(total.wall(50)), ms(total.wall(25)), ms(total.wall(75)))
}
