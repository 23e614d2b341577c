// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
)

// runState is everything that a run has made, in a file below /run/patchbay/run that the run
// keeps locked. A file without a lock belongs to a killed run. It is complete before
// anything is made, including the configuration, because the network's own file may have
// changed by the time of the cleanup.
type runState struct {
	ID    string `json:"id"`
	NetNS string `json:"netns"`
	joined
	More []joined `json:"more,omitempty"` // the other networks

	path string
	file *os.File // holds the lock
}

// joined is one network of a run.
type joined struct {
	IfName       string         `json:"ifname"`
	Builtin      bool           `json:"builtin,omitempty"` // the built-in network
	Config       []byte         `json:"config"`
	Capabilities map[string]any `json:"capabilities,omitempty"`
}

// all lists the networks in the order of attaching.
func (s *runState) all() []joined { return append([]joined{s.joined}, s.More...) }

func (a *app) runDir() string { return filepath.Join(a.paths.Run, "run") }

// newRunState writes the file of a new run and locks it.
func (a *app) newRunState(networks []joined) (*runState, error) {
	id := fmt.Sprintf("run-%012x", rand.Uint64N(1<<48)) // CreateLocked refuses an id that another run has
	s := &runState{ID: id, NetNS: filepath.Join(a.paths.NetNS, "patchbay-"+id), joined: networks[0], More: networks[1:]}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode run: %w", err)
	}
	if err := durable.MakeDir(a.paths.Run, "run"); err != nil {
		return nil, fmt.Errorf("note run: %w", err)
	}
	s.path = filepath.Join(a.runDir(), id)
	fd, err := durable.CreateLocked(s.path, data)
	if err != nil {
		return nil, fmt.Errorf("note run: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), s.path)
	return s, nil
}

func (s *runState) attachment(j joined) chain.Attachment {
	return chain.Attachment{ContainerID: s.ID, NetNS: s.NetNS, IfName: j.IfName, Capabilities: j.Capabilities}
}

// network is the network at the time of joining: its file may have changed since.
func (j joined) network() (*network, error) {
	list, err := chain.ParseList(j.Config)
	return &network{List: list, builtin: j.Builtin}, err
}

// unlock leaves the cleanup to the next run.
func (s *runState) unlock() error { return s.file.Close() }

// forget removes the file, which stays locked until then, so that only one process cleans
// up.
func (s *runState) forget() error {
	err := ignoreMissing(os.Remove(s.path))
	return errors.Join(err, s.file.Close())
}

// reap cleans up after killed runs. A failure to clean up is only a warning: it must not
// stop this run.
func (a *app) reap() {
	if err := durable.CheckDir(a.paths.Run, "run"); err != nil {
		a.warn(fmt.Errorf("clean up after earlier runs: %w", err))
		return
	}
	entries, err := os.ReadDir(a.runDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.warn(fmt.Errorf("clean up after earlier runs: %w", err))
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), "run-") {
			continue
		}
		if err := a.reapOne(filepath.Join(a.runDir(), e.Name())); err != nil {
			a.warn(fmt.Errorf("clean up after %s: %w", e.Name(), err))
		}
	}
}

// reapOne takes the lock of a dead run and cleans up. It removes an invalid file: a run's
// file appears complete.
func (a *app) reapOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = nil // the run is alive
		}
		return errors.Join(err, f.Close())
	}
	s := &runState{path: path, file: f}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f.Close() // another process has cleaned up
	}
	if err != nil {
		return errors.Join(err, s.unlock())
	}
	if json.Unmarshal(data, s) != nil || s.ID != filepath.Base(path) {
		return s.forget()
	}
	if s.NetNS != filepath.Join(a.paths.NetNS, "patchbay-"+s.ID) {
		return errors.Join(fmt.Errorf("namespace %s is not a run's", s.NetNS), s.unlock())
	}
	return a.leave(s)
}
