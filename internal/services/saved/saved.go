// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package saved is the file in which the agent of a Kubernetes node keeps what decides about Services, so that they work after a reboot
// without the API server. `patchbay` reads the names of Services from it. The file is JSON, one object in each line. The
// fields of services.Service, Slice, Node and Options, and the text of an endpoint, are part of the format.
package saved

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/services"
)

// schema is the version of the format.
const schema = 1

// limit is the most bytes that Load reads: a cluster with 45,000 Services needs 27 MB.
const limit = 64 << 20

// Path is the file of this node.
func Path(p paths.Paths) string { return filepath.Join(p.State, "node", "services.json") }

// Objects are what the file has. Write writes the lists in their order.
type Objects struct {
	Node     services.Node
	Options  services.Options
	CIDRs    map[string][]netip.Prefix // by the names of the ServiceCIDRs
	Services []*services.Service
	Slices   []*services.Slice
}

// head is the first line, and says how many follow.
type head struct {
	Schema, Objects int
	Node            services.Node
	Options         services.Options
	CIDRs           map[string][]netip.Prefix
}

// object is each further line: a Service or a slice.
type object struct {
	Service *services.Service `json:",omitempty"`
	Slice   *services.Slice   `json:",omitempty"`
}

// Write writes the format. The same objects give the same bytes.
func (o *Objects) Write(to io.Writer) error {
	w := NewWriter(to, o, len(o.Services)+len(o.Slices))
	for _, s := range o.Services {
		w.Service(s)
	}
	for _, s := range o.Slices {
		w.Slice(s)
	}
	return w.Err()
}

// Writer writes the format one object after the other: all Services, and then all slices.
type Writer struct {
	json *json.Encoder
	err  error
}

// NewWriter returns a Writer of a number of objects. It writes what else the Objects have.
func NewWriter(to io.Writer, o *Objects, number int) *Writer {
	w := &Writer{json: json.NewEncoder(to)}
	w.write(head{schema, number, o.Node, o.Options, o.CIDRs})
	return w
}

// Service writes a Service.
func (w *Writer) Service(s *services.Service) { w.write(object{Service: s}) }

// Slice writes a slice.
func (w *Writer) Slice(s *services.Slice) { w.write(object{Slice: s}) }

func (w *Writer) write(v any) {
	if w.err == nil {
		w.err = w.json.Encode(v)
	}
}

// Err returns the first error of all.
func (w *Writer) Err() error { return w.err }

// Read reads what Write wrote. It returns an error for a part of it, and for another schema.
func Read(from io.Reader) (*Objects, error) {
	in := json.NewDecoder(from)
	var h head
	if err := in.Decode(&h); err != nil {
		return nil, err
	}
	if h.Schema != schema {
		return nil, fmt.Errorf("schema %d; this program reads %d", h.Schema, schema)
	}
	o := &Objects{Node: h.Node, Options: h.Options, CIDRs: h.CIDRs}
	for in.More() {
		if err := o.add(in); err != nil {
			return nil, err
		}
	}
	if n := len(o.Services) + len(o.Slices); n != h.Objects {
		return nil, fmt.Errorf("it has %d objects of %d", n, h.Objects)
	}
	return o, nil
}

func (o *Objects) add(in *json.Decoder) error {
	var next object
	switch err := in.Decode(&next); {
	case err != nil:
		return err
	case (next.Service == nil) == (next.Slice == nil):
		return errors.New("an object is neither a Service nor a slice")
	case next.Service != nil:
		o.Services = append(o.Services, next.Service)
	default:
		o.Slices = append(o.Slices, next.Slice)
	}
	return nil
}

// Load reads the file of this node, and returns its bytes, too. For an error, errors.Is(err, fs.ErrNotExist) reports that there is no file.
func Load(p paths.Paths) (*Objects, []byte, error) {
	data, err := durable.ReadUpTo(Path(p), limit)
	if err != nil {
		return nil, nil, err
	}
	o, err := Read(bytes.NewReader(data))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", Path(p), err)
	}
	return o, data, nil
}

// State returns the objects as the compiler takes them, without addresses of links.
func (o *Objects) State() *services.State {
	s := &services.State{Node: o.Node, Options: o.Options, Services: make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice)}
	for _, name := range slices.SortedFunc(maps.Keys(o.CIDRs), strings.Compare) {
		s.CIDRs = append(s.CIDRs, o.CIDRs[name]...)
	}
	for _, v := range o.Services {
		s.Services[v.Name] = v
	}
	for _, v := range o.Slices {
		s.Slices[v.Service] = append(s.Slices[v.Service], v)
	}
	return s
}
