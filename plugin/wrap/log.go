// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// step is one line of the log.
type step struct {
	Time        time.Time `json:"time"`
	Verb        spec.Verb `json:"verb"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Step        string    `json:"step"` // before, plugin, after
	Name        string    `json:"name"` // of the program or plugin
	Millis      float64   `json:"ms"`
	Code        spec.Code `json:"code,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// timed runs fn and writes a line about it.
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
		w.warn(lerr)
	}
	return err
}

// append writes the line with one call, so that lines of several processes do not mix. A
// link at the path is not followed, and nothing waits for the reader of a pipe.
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

// warn writes a line to standard error.
func (w *wrapped) warn(err error) {
	fmt.Fprintf(w.request.Session.Stderr, "patchbay: warning: %s: %v\n", w.request, err) //nolint:errcheck // a log line
}
