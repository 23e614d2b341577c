// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Step is something that the suite did on the way to an outcome: a call of the plugin, or a change of the node.
type Step struct {
	Command string `json:"command,omitempty"` // of a shell, which makes the same change; empty for a call
	Call    *Call  `json:"call,omitempty"`
}

// Call is one call of the plugin.
type Call struct {
	Program string   `json:"program,omitempty"` // path; empty if the plugin ran in the suite's process
	Args    []string `json:"args,omitempty"`    // of a runtime's command; a plugin has none
	Env     []string `json:"env"`               // the variables of the call, as K=V
	Stdin   string   `json:"stdin"`
	Stdout  string   `json:"stdout"`
	Stderr  string   `json:"stderr,omitempty"`
	Failed  string   `json:"failed,omitempty"` // how the call failed
	Exit    int      `json:"exit"`             // -1 if a signal ended the program

	Milliseconds float64 `json:"milliseconds"`
	Killed       bool    `json:"killed,omitempty"` // the suite killed it on purpose after Milliseconds
}

// diary has the steps of one script. Calls may run in parallel.
type diary struct {
	mu    sync.Mutex
	steps []Step
	last  *spec.Call    // the call that began last
	took  time.Duration // how long the call took that ended last
}

// did notes a change of the node.
func (d *diary) did(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, Step{Command: fmt.Sprintf(format, args...)})
}

func (d *diary) called(c *spec.Call) *Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	call := &Call{Env: c.Environ(), Stdin: string(c.Config)}
	d.steps, d.last = append(d.steps, Step{Call: call}), c
	return call
}

// ended notes how a call ended.
func (d *diary) ended(c *Call, took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.took, c.Milliseconds = took, float64(took.Microseconds())/1000
	if err != nil {
		c.Failed = err.Error()
	}
}

// saw notes what a program printed and how it ended.
func (c *Call) saw(path string, stdout, stderr []byte, err error) {
	c.Program, c.Stdout, c.Stderr, c.Exit = path, string(stdout), string(stderr), 0
	var ended interface{ ExitCode() int }
	if errors.As(err, &ended) {
		c.Exit = ended.ExitCode()
	}
}

// invoke calls the plugin and notes the call.
func (w *World) invoke(ctx context.Context, call *spec.Call) ([]byte, error) {
	note := w.diary.called(call)
	inv := w.suite.Invoker
	program, ok := inv.(*invoke.Exec)
	if ok {
		watched := *program
		watched.Saw = note.saw
		inv = &watched
	}
	begun := time.Now()
	out, err := inv.Invoke(ctx, w.suite.Subject.Type, call)
	w.diary.ended(note, time.Since(begun), err)
	if !ok {
		note.Stdout = string(out)
	}
	return out, err
}

// programs reports whether the plugin runs as a program.
func (s *Suite) programs() bool {
	inv := s.Invoker
	if around, ok := inv.(interface{ Around() invoke.Invoker }); ok {
		inv = around.Around()
	}
	_, ok := inv.(*invoke.Exec)
	return ok
}
