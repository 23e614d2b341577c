// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/flock"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// reap cleans up after runs that were killed.
func (a *app) reap() error {
	list, err := a.killedRuns(true)
	errs := []error{err}
	for _, s := range list {
		if err := a.leave(s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.ID, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean up after earlier runs: %w", err)
	}
	return nil
}

// killedRuns returns the runs that were killed, with their files locked. If clean is set, it removes
// invalid files, because no run leaves an incomplete file.
func (a *app) killedRuns(clean bool) (list []*runState, err error) {
	if err := durable.CheckDir(a.paths.Run, "run"); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(a.runDir())
	errs := []error{ignoreMissing(err)}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), "run-") {
			continue
		}
		s, err := a.killedRun(filepath.Join(a.runDir(), e.Name()), clean)
		if s != nil {
			list = append(list, s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Name(), err))
		}
	}
	return list, errors.Join(errs...)
}

// killedRun takes the lock of a dead run and reads its file. If the run is alive, or the file is not
// valid, it returns nil.
func (a *app) killedRun(path string, clean bool) (*runState, error) {
	fd, alive, err := flock.Try(path, flock.Options{Write: true})
	if err != nil || alive {
		return nil, ignoreMissing(err)
	}
	f := os.NewFile(uintptr(fd), path)
	s := &runState{path: path, file: f}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, f.Close() // another process has cleaned up
	}
	if err != nil {
		return nil, errors.Join(err, s.unlock())
	}
	switch valid := json.Unmarshal(data, s) == nil && s.ID == filepath.Base(path); {
	case !valid && clean:
		return nil, s.forget()
	case !valid:
		return nil, s.unlock()
	}
	if s.NetNS != filepath.Join(a.paths.NetNS, "patchbay-"+s.ID) {
		return nil, errors.Join(fmt.Errorf("namespace %s is not a run's", s.NetNS), s.unlock())
	}
	return s, nil
}

// whyKilled tells why gc removes an attachment although its namespace exists: only the killed run used
// the namespace.
const whyKilled = "the patchbay run that made it was killed"

// collectRuns returns the attachments of runs that were killed, on one network or on all. With
// apply it removes these runs, with their attachments on other networks.
func (a *app) collectRuns(network string, apply bool) (dead []*gc.Candidate, err error) {
	list, err := a.killedRuns(apply)
	errs := []error{err}
	for _, s := range list {
		found := s.candidates(network)
		var lerr error
		if apply && len(found) > 0 {
			lerr = a.leave(s)
		} else {
			lerr = s.unlock()
		}
		for _, c := range found {
			if c.Removed = apply && lerr == nil; lerr != nil {
				c.Error = lerr.Error()
			}
		}
		dead, errs = append(dead, found...), append(errs, lerr)
	}
	return dead, errors.Join(errs...)
}

// candidates describes the attachments of a run, on one network or on all, as gc does.
func (s *runState) candidates(network string) (list []*gc.Candidate) {
	for _, j := range s.all() {
		n, err := j.network()
		if err != nil || network != "" && n.Name != network {
			continue
		}
		list = append(list, &gc.Candidate{
			Network: n.Name, ContainerID: s.ID, IfName: j.IfName, Owner: owner.Of(n.Name, s.ID, j.IfName), State: gc.Dead, Why: whyKilled,
			NetNS: []string{s.NetNS}, Objects: []gc.Object{{Kind: "namespace", Name: s.NetNS}},
		})
	}
	return list
}
