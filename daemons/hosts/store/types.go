// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Transport is how packets get from host to host.
type Transport string

// These are the transports.
const (
	Routes Transport = "routes" // plain routes; the hosts must be on one link
	VXLAN  Transport = "vxlan"
	Auto   Transport = "auto" // routes to hosts on the same link, VXLAN to others

	WireGuard Transport = "wireguard" // encrypted; nothing is sent unencrypted
)

// Network is a network on many hosts. It describes the desired state, which each host applies.
type Network struct {
	Name string `json:"name"`
	// Subnets are the address ranges for all hosts together, at most one of each family.
	Subnets []netip.Prefix `json:"subnets"`
	// BlockBits4 and BlockBits6 are the prefix lengths of one host's block.
	BlockBits4 int       `json:"blockBits4,omitempty"`
	BlockBits6 int       `json:"blockBits6,omitempty"`
	Transport  Transport `json:"transport"`
	MTU        int       `json:"mtu,omitempty"` // MTU of containers in bytes; 0 means the uplink's MTU minus the tunnel's header
	// Isolate keeps the network's containers and those of other isolated networks apart, on all hosts.
	// An agent that does not know it leaves them open.
	Isolate bool `json:"isolate,omitempty"`
	// Plugins come after the bridge in the chain. nil means firewall and portmap.
	Plugins []json.RawMessage `json:"plugins,omitempty"`
}

// Key returns the name.
func (n Network) Key() string { return n.Name }

// Node is a host. Its record stays while the host is not present. A host that cannot reach the
// store still has containers, and the other hosts still have routes to them.
type Node struct {
	ID       string       `json:"id"` // does not change when the host reboots or gets another name
	Name     string       `json:"name"`
	Underlay []netip.Addr `json:"underlay"` // where other hosts reach it, at most one address of each family
	VTEP     string       `json:"vtep"`     // Ethernet address of the host's end of the tunnel
	Port     uint16       `json:"port"`     // UDP port of the tunnel
	Seen     time.Time    `json:"seen"`     // when its agent last wrote this record, by the clock of that host
	// LastingIn names the history of the store (Revision.Split) in which the node made an endpoint on a long session. The
	// endpoint ends when other hosts may take the node's blocks, so no host's clock decides whether the node is gone. If the
	// store is in another history, it has lost the endpoint, perhaps of a living node. A node of an earlier
	// release has no such endpoint.
	LastingIn string `json:"lastingIn,omitempty"`
	// WireGuardKey is the public key in base64, and WireGuardPort the UDP port of WireGuard. A host that
	// cannot encrypt, or is on no encrypted network, has none.
	WireGuardKey  string `json:"wireguardKey,omitempty"`
	WireGuardPort uint16 `json:"wireguardPort,omitempty"`
}

// Key returns the id.
func (n Node) Key() string { return n.ID }

// Block is a range from which one node assigns addresses.
type Block struct {
	Network string       `json:"network"`
	Prefix  netip.Prefix `json:"prefix"`
	Node    string       `json:"node"` // the node's id
}

// Key returns "network/address-bits". So two nodes cannot create the same block.
func (b Block) Key() string {
	return b.Network + "/" + escape(b.Prefix)
}

// Entry is a container on a network. In a network of the agents, it is a host. It is on the
// session of its node.
type Entry struct {
	Network   string       `json:"network"`
	ID        string       `json:"id"` // unique on its node
	Node      string       `json:"node"`
	Addrs     []netip.Addr `json:"addrs"`
	MAC       string       `json:"mac,omitempty"`
	Container string       `json:"container,omitempty"` // the container's id
	// Names are the container's names. Several endpoints may have one name, which then has the
	// addresses of all of them.
	Names []string `json:"names,omitempty"`
}

// Key returns "network/node/id".
func (e Entry) Key() string { return e.Network + "/" + e.Node + "/" + e.ID }

// escape writes a prefix as one element of a path: 10.1.2.0-24, fd00::-64.
func escape(p netip.Prefix) string {
	b, _ := p.Masked().MarshalText()
	for i := range b {
		if b[i] == '/' {
			b[i] = '-'
		}
	}
	return string(b)
}

// kind holds what differs from table to table.
type kind[T Object] struct {
	table string
	one   string // the word for one object, in errors
	parts int    // how many names a key has
	// blank returns an object in which only the fields of the key are set.
	blank func(names []string) (T, error)
}

func networks() kind[Network] {
	return kind[Network]{"networks", "network", 1, func(names []string) (Network, error) {
		return Network{Name: names[0]}, nil
	}}
}

func nodes() kind[Node] {
	return kind[Node]{"nodes", "node", 1, func(names []string) (Node, error) {
		return Node{ID: names[0]}, nil
	}}
}

func blocks() kind[Block] {
	return kind[Block]{"blocks", "block", 2, func(names []string) (Block, error) {
		prefix, err := unescape(names[1])
		return Block{Network: names[0], Prefix: prefix}, err
	}}
}

func endpoints() kind[Entry] {
	return kind[Entry]{"endpoints", "endpoint", 3, func(names []string) (Entry, error) {
		return Entry{Network: names[0], Node: names[1], ID: names[2]}, nil
	}}
}

// unescape parses a prefix that is written as in a block's key: 10.1.2.0-24.
func unescape(name string) (netip.Prefix, error) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return netip.Prefix{}, fmt.Errorf("%w: %q is not ADDRESS-BITS", ErrName, name)
	}
	p, err := netip.ParsePrefix(name[:i] + "/" + name[i+1:])
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%w: %w", ErrName, err)
	}
	return p, nil
}

// maxKey is the length of the longest key in bytes. With a suffix it is still a valid file name
// on every system.
const maxKey = 200

// names splits a key. If no object of this kind can have the key, names refuses it.
func (k kind[T]) names(key string) ([]string, error) {
	names := strings.Split(key, "/")
	if len(names) != k.parts {
		return nil, fmt.Errorf("%w: it needs %d parts between slashes", ErrName, k.parts)
	}
	if len(key) > maxKey {
		return nil, fmt.Errorf("%w: it is longer than %d bytes", ErrName, maxKey)
	}
	for _, name := range names {
		if !isName(name) {
			return nil, fmt.Errorf("%w: %q is not made of letters, digits and _.-: only, or begins with . or -", ErrName, name)
		}
	}
	return names, nil
}

func isName(name string) bool {
	for i := range len(name) {
		if !inName(name[i]) {
			return false
		}
	}
	return name != "" && name[0] != '.' && name[0] != '-'
}

func inName(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c == '_' || c == '.' || c == '-' || c == ':'
}

// schema is the version of the stored form of objects. Increase it for a form that an older
// Patchbay would misread, but not for a new field that an older Patchbay may ignore.
const schema = 1

// maxObject is the largest size of an object in bytes. etcd accepts requests of 1.5 MiB, of which
// other parts take some.
const maxObject = 256 << 10

// stored is the stored form of an object.
type stored struct {
	Schema int             `json:"schema"`
	Object json.RawMessage `json:"object"`
}

func encode[T Object](object T) ([]byte, error) {
	data, err := marshal(object)
	if err != nil {
		return nil, err
	}
	if len(data) > maxObject {
		return nil, fmt.Errorf("it has %d bytes, %d at most", len(data), maxObject)
	}
	return marshal(stored{Schema: schema, Object: data})
}

// marshal encodes as json.Marshal does, but does not escape HTML, so that the text of plugin
// configurations stays as it is.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// decode decodes what encode wrote under this key. Its errors are ErrUnreadable.
func (k kind[T]) decode(key string, data []byte) (object T, err error) {
	if _, err := k.names(key); err != nil {
		return object, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	var s stored
	if err := json.Unmarshal(data, &s); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", ErrUnreadable, err)
	}
	if s.Schema > schema {
		return object, fmt.Errorf("%w: it has schema %d, and this Patchbay reads up to %d: update Patchbay", ErrUnreadable, s.Schema, schema)
	}
	if s.Schema < 1 {
		return object, fmt.Errorf("%w: damaged: it has no schema", ErrUnreadable)
	}
	if err := json.Unmarshal(s.Object, &object); err != nil {
		return object, fmt.Errorf("%w: damaged: %w", ErrUnreadable, err)
	}
	if got := object.Key(); got != key {
		return object, fmt.Errorf("%w: damaged: its content is that of %q", ErrUnreadable, got)
	}
	return object, nil
}

// deleted returns a deleted object, which has only the fields of its key, or ErrName.
func (k kind[T]) deleted(key string) (object T, err error) {
	names, err := k.names(key)
	if err == nil {
		object, err = k.blank(names)
	}
	if err == nil && object.Key() != key {
		err = fmt.Errorf("%w: it would be %q", ErrName, object.Key())
	}
	return object, err
}
