// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// call calls the plugin through fn. If the plugin answers with code 11 (try again later), call
// tries again. Each try must end within the timeout.
func (w *wrapped) call(ctx context.Context, fn func(context.Context) error) error {
	if w.conf.Retry.Times > 0 {
		// A plugin in this process that fails discards the queued work of earlier members of a
		// `patchbay` list. That work must not get lost if another try succeeds, so flush does it first.
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	for try := 0; ; try++ {
		err := w.timed("plugin", w.Type, func() error { return w.once(ctx, fn) })
		if spec.ErrorCode(err) != spec.CodeTryAgain || try == w.conf.Retry.Times {
			return err
		}
		select {
		case <-time.After(w.wait):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

func (w *wrapped) once(ctx context.Context, fn func(context.Context) error) error {
	if w.timeout == 0 {
		return fn(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	err := fn(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it took longer than %v: %w", w.timeout, err)
	}
	return err
}

// flush does the queued work, such as changes of the firewall. A command that looks at the node
// then sees it.
func (w *wrapped) flush(ctx context.Context) error {
	if w.request.Session.Dry != nil {
		return nil
	}
	return w.request.Session.Flush(ctx)
}

// before runs the commands before the plugin. If stop is set, it stops at the first command that
// fails.
func (w *wrapped) before(ctx context.Context, stop bool) error {
	return w.each(ctx, "before", stop, w.stdin, w.changeConfig)
}

// stdin returns the configuration that the plugin gets.
func (w *wrapped) stdin() ([]byte, error) {
	r := w.request
	if r.Verb != spec.Add || r.Prev() == nil {
		return w.Config(r.Head.PrevResult)
	}
	prev, err := r.Prev().Encode(r.Version) // in a chain within one process, the configuration has no previous result
	if err != nil {
		return nil, err
	}
	return w.Config(prev)
}

// after runs the configured After commands of CHECK, STATUS, DEL and GC. These verbs return no
// result; afterAdd serves ADD.
func (w *wrapped) after(ctx context.Context, stop bool) error {
	if len(w.conf.Around[w.request.Verb].After) == 0 {
		return nil
	}
	flushed := w.flush(ctx)
	return errors.Join(flushed, w.each(ctx, "after", stop, w.stdin, func(*Patch) error { return nil }))
}

// afterAdd runs the commands after ADD. Each gets the current result.
func (w *wrapped) afterAdd(ctx context.Context, result *spec.Result) (*spec.Result, error) {
	if len(w.conf.Around[spec.Add].After) == 0 {
		return result, nil
	}
	if err := w.flush(ctx); err != nil {
		return nil, err
	}
	current := func() ([]byte, error) { return result.Encode(w.request.Version) }
	err := w.each(ctx, "after", true, current, func(p *Patch) error {
		changed, err := w.changeResult(result, p)
		if err == nil { // if a command with mayFail fails, the result does not change
			result = changed
		}
		return err
	})
	return result, err
}

// each runs every command before or after the plugin. If stop is set, each stops at the first
// error. stdin returns a command's input. apply gets the patch that the command printed, or nil.
func (w *wrapped) each(ctx context.Context, when string, stop bool, stdin func() ([]byte, error), apply func(*Patch) error) error {
	list := w.conf.Around[w.request.Verb].Before
	if when == "after" {
		list = w.conf.Around[w.request.Verb].After
	}
	var errs []error
	for i := range list {
		c := &list[i]
		in, err := stdin()
		var p *Patch
		if err == nil {
			p, err = w.command(ctx, when, c, in)
		}
		if err == nil {
			err = apply(p)
		}
		if err != nil && c.MayFail {
			kernel.Warn(w.request, fmt.Errorf("command %s: %w", c.Argv[0], err))
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("command %s: %w", c.Argv[0], err))
		}
		if err != nil && stop {
			break
		}
	}
	return spec.Join(errs...)
}

// command runs one command. If the command is configured to print a patch, command returns the
// patch. A dry run only writes down the command.
func (w *wrapped) command(ctx context.Context, when string, c *Command, stdin []byte) (p *Patch, err error) {
	if dry := w.request.Session.Dry; dry != nil {
		dry(fmt.Sprintf("host: run %s", strings.Join(c.Argv, " ")))
		return nil, nil
	}
	if err := w.request.Step(when + " " + c.Argv[0]); err != nil {
		return nil, err
	}
	err = w.timed(when, c.Argv[0], func() error {
		stdout, stderr, err := c.run(ctx, slices.Concat(w.request.Session.Environ(), w.request.Environ()), stdin)
		if len(stderr) > 0 && err == nil {
			w.request.Session.Stderr.Write(stderr) //nolint:errcheck // a log
		}
		if err == nil && c.Output != "" {
			p, err = c.patchOf(stdout)
		}
		return err
	})
	return p, err
}

// step is one line of the log.
type step struct {
	Time        time.Time `json:"time"`
	Verb        spec.Verb `json:"verb"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Step        string    `json:"step"` // before, plugin, after
	Name        string    `json:"name"` // name of the program or plugin
	Millis      float64   `json:"ms"`
	Code        spec.Code `json:"code,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// timed runs fn and writes a line about it to the log.
func (w *wrapped) timed(kind, name string, fn func() error) error {
	if w.conf.Log == "" {
		return fn()
	}
	r, start := w.request, time.Now()
	err := fn()
	s := step{
		Time: start, Verb: r.Verb, Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName,
		Step: kind, Name: name, Millis: float64(time.Since(start).Microseconds()) / 1000, Code: spec.ErrorCode(err),
	}
	if err != nil {
		s.Error = err.Error()
	}
	if lerr := s.append(w.conf.Log); lerr != nil {
		kernel.Warn(w.request, lerr)
	}
	return err
}

// append writes the line with a single call, so that lines of several processes do not mix. It
// refuses a symbolic link at path, and does not wait for a reader of a pipe.
func (s *step) append(path string) error {
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}
