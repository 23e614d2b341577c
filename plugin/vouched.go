// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/spec"
)

// parseList reads what a GC's configuration says of its list of valid attachments: which they are, since when, and
// whether they are those of all runtimes. If it says no time, all plugins that a GC calls one after another get that of
// the first call.
func (r *Request) parseList() error {
	if err := r.vouch(); err != nil {
		return err
	}
	listed, ok := clock.Listed(r.Config)
	r.everyones = clock.Everyones(r.Config)
	if s := r.Session; !ok {
		if s.collecting.IsZero() {
			s.collecting = time.Now()
		}
		listed = s.collecting
	}
	r.listed = listed
	return nil
}

// vouch adds the Docker driver's attachments to a GC's list of valid attachments. The caller of
// the GC may be another runtime on the same network, which does not know those attachments.
// Plugins that this plugin calls get the longer list, also those of other programs.
func (r *Request) vouch() error {
	valid, ok := r.Head.Valid()
	if !ok {
		return nil
	}
	held, err := vouched(r.Session.Paths, r.Network)
	if err != nil {
		return err
	}
	all := slices.Clone(valid)
	for _, a := range held {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if len(all) == len(valid) {
		return nil
	}
	more := *r.Call
	if more.Config, err = withValid(r.Config, all); err != nil {
		return err
	}
	r.Call = &more
	r.Head, err = spec.ParseConf(more.Config)
	return err
}

// vouched returns the attachments of each container for which the Docker driver holds a
// namespace. Any runtime may have made them. vouched skips a record that cannot be decoded. A
// record that cannot be read is an error, because the GC would remove an attachment that is left
// out.
func vouched(p paths.Paths, network string) (valid []spec.AttachmentKey, err error) {
	if _, err := os.Lstat(p.Holds()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the driver has never run
	}
	heads, err := headsOf(p.Run, network)
	if err != nil {
		return nil, err
	}
	held, judge := map[string]bool{}, life.Judge{Proc: p.Proc, Run: p.Run}
	for _, n := range heads {
		if filepath.Dir(n.NetNS) == p.Holds() && !held[n.ContainerID] {
			state, _ := judge.At(n.NetNS, n.NetNSMark)
			held[n.ContainerID] = state != life.Dead
		}
	}
	for _, n := range heads {
		if held[n.ContainerID] {
			valid = append(valid, spec.AttachmentKey{ContainerID: n.ContainerID, IfName: n.IfName})
		}
	}
	return valid, nil
}

// headsOf reads what records say, as far as vouched needs it. It does not use internal/record, because
// that package links the firewall, which a plugin made with the SDK does not need.
func headsOf(runDir, network string) (heads []claim.Head, err error) {
	if err := durable.CheckDir(runDir, claim.Attachments, network); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	dir := filepath.Join(runDir, claim.Attachments, network)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read records: %w", err)
	}
	for _, e := range entries {
		var h claim.Head
		switch data, err := os.ReadFile(filepath.Join(dir, e.Name())); {
		case errors.Is(err, fs.ErrNotExist): // another process has removed it
		case err != nil:
			return nil, fmt.Errorf("read records: %w", err)
		case json.Unmarshal(data, &h) == nil && h.ContainerID != "":
			heads = append(heads, h)
		}
	}
	return heads, nil
}

// withValid returns a GC's configuration with another list of valid attachments.
func withValid(config []byte, valid []spec.AttachmentKey) ([]byte, error) {
	conf, err := spec.ParseObject(config)
	if err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	if err := conf.SetValid(valid); err != nil {
		return nil, err
	}
	return conf.JSON()
}
