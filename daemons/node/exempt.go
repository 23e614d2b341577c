// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/prefix"
)

// exemptions are the operator's destinations to which pods keep their address. The file is a key of
// a ConfigMap, which the kubelet may replace at any time. While the file is wrong or cannot be
// read, the agent uses a copy of the last valid file, also after a reboot.
type exemptions struct {
	file    string // "": there is none
	copy    string
	every   time.Duration
	changed func()
	report  func(error)
	log     func(format string, args ...any)

	mu   sync.Mutex
	list []netip.Prefix
	last []byte // what was read last, good or not
	good []byte // what is in use
}

// exemptFile is the name of the copy in the agent's directory.
const exemptFile = "masquerade.yaml"

// exemptEvery is how often the agent reads the file. The kubelet takes up to a minute to change it.
const exemptEvery = 5 * time.Second

// maxExempt limits the list. Each entry is a range in the kernel for each podCIDR of the node.
const maxExempt = 256

// now returns the current list.
func (x *exemptions) now() []netip.Prefix {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.list
}

// load reads the copy and then the file. If the file is valid, its list replaces the copy's.
func (x *exemptions) load() {
	if x.file == "" {
		x.report(durable.Remove(x.copy)) // of an agent that had a file
		return
	}
	if data, err := durable.Read(x.copy); err == nil {
		if list, err := parseExempt(data); err == nil {
			x.list, x.good = list, data
		}
	}
	x.reload()
}

// follow reads the file regularly until ctx ends.
func (x *exemptions) follow(ctx context.Context) {
	if x.file == "" {
		return
	}
	tick := time.NewTicker(x.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			x.reload()
		}
	}
}

// reload uses the file if it has changed and is valid.
func (x *exemptions) reload() {
	data, err := x.read()
	if err == nil && x.last != nil && bytes.Equal(data, x.last) {
		return
	}
	var list []netip.Prefix
	if x.last = data; err == nil {
		list, err = parseExempt(data)
	}
	if err != nil {
		x.report(fmt.Errorf("%s: %w: pods keep their address towards %v as before; correct the ConfigMap", x.file, err, x.now()))
		return
	}
	x.report(x.use(list, data))
}

// read returns the file's content. A missing file counts as empty, because the ConfigMap is
// optional. If the directory is missing too, the ConfigMap is not mounted, and read returns an
// error.
func (x *exemptions) read() ([]byte, error) {
	data, err := durable.ReadConf(x.file)
	switch {
	case err == nil:
		return append([]byte{}, data...), nil // not nil, because nil means a file that could not be read
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if _, dirErr := os.Stat(filepath.Dir(x.file)); dirErr != nil {
		return nil, dirErr
	}
	return []byte{}, nil
}

// use puts a list in force, and saves the file for the next start.
func (x *exemptions) use(list []netip.Prefix, data []byte) error {
	x.mu.Lock()
	differs := !slices.Equal(x.list, list)
	x.list = list
	x.mu.Unlock()
	if differs {
		x.log("masquerade: pods keep their address towards %v", list)
		x.changed()
	}
	if bytes.Equal(x.good, data) {
		return nil
	}
	if err := durable.WriteDurable(x.copy, data, 0o600); err != nil {
		x.last = nil // try again
		return fmt.Errorf("note it for the next start: %w", err)
	}
	x.good = data
	return nil
}

// exemptConfig is the file's content: YAML or JSON in the format of ip-masq-agent.
type exemptConfig struct {
	NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
	MasqLinkLocal      *bool    `json:"masqLinkLocal"`
	MasqLinkLocalIPv6  *bool    `json:"masqLinkLocalIPv6"`

	// Only ip-masq-agent uses these: how often it reads the file, and its limit of entries.
	ResyncInterval string `json:"resyncInterval"`
	CIDRLimit      int    `json:"cidrLimit"`
}

func parseExempt(data []byte) ([]netip.Prefix, error) {
	var c exemptConfig
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	if n := len(c.NonMasqueradeCIDRs); n > maxExempt {
		return nil, fmt.Errorf("nonMasqueradeCIDRs has %d entries, %d at most", n, maxExempt)
	}
	list, err := podnet.Prefixes("nonMasqueradeCIDRs", c.NonMasqueradeCIDRs)
	if c.MasqLinkLocal != nil && !*c.MasqLinkLocal {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254}), 16))
	}
	if c.MasqLinkLocalIPv6 != nil && !*c.MasqLinkLocalIPv6 {
		list = append(list, prefix.LinkLocal())
	}
	return list, err
}
