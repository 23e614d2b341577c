// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// confMode is the mode that operators give files in that directory.
const confMode = 0o644

// confSuffix is the suffix of a configuration list, as libcni defines it.
const confSuffix = ".conflist"

// errForeign means that another program wrote the file.
var errForeign = errors.New("the agent did not write it, and does not change it")

// writeConf writes a network's configuration if the file has another one.
func writeConf(dir, network string, data []byte) error {
	path := filepath.Join(dir, network+confSuffix)
	if err := ours(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := durable.Update(path, data, confMode, func([]byte) bool { return true })
	return err
}

// ours returns an error if a configuration is not there or lacks our mark.
func ours(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", path, errForeign)
	}
	data, err := durable.ReadConf(path)
	if err != nil {
		return err
	}
	var list conflist
	if json.Unmarshal(data, &list) != nil || list.Generated != mark {
		return fmt.Errorf("%s: %w", path, errForeign)
	}
	return nil
}

// foreign reports whether a network's configuration is another program's.
func foreign(dir, network string) bool {
	return errors.Is(ours(filepath.Join(dir, network+confSuffix)), errForeign)
}

// removeConfs removes the configurations that the agent wrote, except those for which keep
// returns true. It returns the networks of the files that it removed.
func removeConfs(dir string, keep func(network string) bool) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		network, ok := strings.CutSuffix(e.Name(), confSuffix)
		if !ok || keep(network) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if err := ours(path); err != nil {
			continue // another program's file, or one that is already gone
		}
		errs = append(errs, os.Remove(path))
		removed = append(removed, network)
	}
	return removed, errors.Join(errs...)
}

// identity is the content of the file that identifies a host. It stays the same when the host
// reboots or gets another name or other addresses.
type identity struct {
	ID string `json:"id"` // 16 hexadecimal digits
}

const identityFile = "node.json"

// loadIdentity reads this host's id. On the first start it creates the id. If the file exists but
// cannot be read, loadIdentity returns an error, because with a new id the host would abandon its
// blocks.
func loadIdentity(dir string) (id string, err error) {
	id, err = readIdentity(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	id = random(8)
	data, err := json.Marshal(identity{id})
	if err != nil {
		return "", fmt.Errorf("encode the host's identity: %w", err)
	}
	return id, durable.WriteDurable(filepath.Join(dir, identityFile), data, 0o600)
}

// readIdentity reads the id, but never creates one. If no agent has run here, the error is
// fs.ErrNotExist.
func readIdentity(dir string) (id string, err error) {
	path := filepath.Join(dir, identityFile)
	data, err := durable.Read(path)
	if err != nil {
		return "", fmt.Errorf("read the host's identity: %w", err)
	}
	var self identity
	if err := json.Unmarshal(data, &self); err != nil {
		return "", fmt.Errorf("read the host's identity: %s: %w", path, err)
	}
	if spec.ValidateContainerID(self.ID) != nil {
		return "", fmt.Errorf("read the host's identity: %s: %q is not an id", path, self.ID)
	}
	return self.ID, nil
}

// random returns n random bytes as hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// cniVersion is the version of the rendered configurations.
const cniVersion = "1.1.0"

// mark identifies our configurations. The agent changes no file without it.
const mark = "patchbayd hosts; changes are overwritten"

// conflist is the configuration of one network on one host.
type conflist struct {
	CNIVersion string            `json:"cniVersion"`
	Name       string            `json:"name"`
	Generated  string            `json:"generatedBy"`
	Plugins    []json.RawMessage `json:"plugins"`
}

// bridgeConf is the first plugin. It has the reference's fields, and some of ours. The reference's plugin
// ignores ipMasqOutside and makes no masquerade, which is better than a wrong one.
type bridgeConf struct {
	Type      string         `json:"type"`
	Bridge    string         `json:"bridge"`
	IsGateway bool           `json:"isGateway"`
	Hairpin   bool           `json:"hairpinMode"`
	Outside   []netip.Prefix `json:"ipMasqOutside"`         // the whole network, of which the block is a part
	Span      []netip.Prefix `json:"span"`                  // the same, for `docker network create --internal`
	Refused   []netip.Prefix `json:"unreachable,omitempty"` // the same, if the network is encrypted
	MTU       int            `json:"mtu,omitempty"`
	IPAM      ipamConf       `json:"ipam"`
	DNS       *spec.DNS      `json:"dns,omitempty"`
}

type ipamConf struct {
	Type   string        `json:"type"`
	Ranges [][]rangeConf `json:"ranges"`
	Routes []routeConf   `json:"routes"`
}

type rangeConf struct {
	Subnet netip.Prefix `json:"subnet"`
}

type routeConf struct {
	Dst netip.Prefix `json:"dst"`
}

// plan describes this host's part of one network.
type plan struct {
	Network store.Network
	Blocks  []netip.Prefix // this host's blocks, one of each family
	MTU     int            // the MTU of containers, in bytes; 0 means the kernel's default
	DNS     bool           // containers use our resolver
	Mute    []netip.Addr   // addresses at which it cannot listen
}

// gateways returns the addresses of the bridge, at which the resolver also listens.
func (p *plan) gateways() (out []netip.Addr) {
	for _, b := range p.Blocks {
		out = append(out, gatewayOf(b))
	}
	return out
}

// gatewayOf returns the bridge's address in a block: the default gateway of host-local.
func gatewayOf(block netip.Prefix) netip.Addr { return block.Masked().Addr().Next() }

// render returns the configuration of a network.
func render(p *plan) ([]byte, error) {
	b := bridgeConf{
		Type: "bridge", Bridge: bridgeName(p.Network.Name), IsGateway: true, Hairpin: true, Outside: p.Network.Subnets, Span: p.Network.Subnets, MTU: p.MTU,
		IPAM: ipamConf{Type: "host-local"},
	}
	if encrypts(&p.Network) {
		b.Refused = p.Network.Subnets
	}
	for _, block := range p.Blocks {
		b.IPAM.Ranges = append(b.IPAM.Ranges, []rangeConf{{block}})
	}
	b.IPAM.Routes = routesOf(&p.Network)
	b.DNS = p.servers()
	first, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("render network %s: %w", p.Network.Name, err)
	}
	list := conflist{CNIVersion: cniVersion, Name: p.Network.Name, Generated: mark, Plugins: append([]json.RawMessage{first}, following(&p.Network)...)}
	out, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render network %s: %w", p.Network.Name, err)
	}
	return append(out, '\n'), nil
}

// servers returns where containers ask for names: not where another program would answer them.
func (p *plan) servers() *spec.DNS {
	var servers []string
	for _, a := range p.gateways() {
		if p.DNS && !slices.Contains(p.Mute, a) {
			servers = append(servers, a.String())
		}
	}
	if servers == nil {
		return nil
	}
	return &spec.DNS{Nameservers: servers}
}

// routesOf returns the routes of a network's containers. A container on two networks has the default
// route of only one of them, and still reaches the other hosts of both.
func routesOf(n *store.Network) (out []routeConf) {
	for _, s := range n.Subnets {
		out = append(out, routeConf{s}, routeConf{spec.DefaultDst(s.Addr().Is4())})
	}
	return out
}

// following returns the plugins that come after the bridge.
func following(n *store.Network) []json.RawMessage {
	if n.Plugins != nil {
		return n.Plugins
	}
	firewall := `{"type":"firewall"}`
	if n.Isolate { // from isolated networks of this host alone, too
		firewall = `{"type":"firewall","ingressPolicy":"same-bridge"}`
	}
	return []json.RawMessage{
		json.RawMessage(firewall),
		json.RawMessage(`{"type":"portmap","capabilities":{"portMappings":true}}`),
	}
}

// bridgeName returns the name of a network's bridge. It contains the network's name if that is
// short enough, so that users can read it.
func bridgeName(network string) string {
	const prefix = "pb-"
	if name := prefix + network; spec.ValidateIfName(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(network))
	return prefix + hex.EncodeToString(sum[:6])
}
