// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/saved"
)

// SavedServices returns the Services that the agent of this node has saved, or nil if there are none. The copy may be a minute old.
func (h Host) SavedServices() (*services.State, error) {
	all, _, err := saved.Load(h.Paths)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := all.State()
	s.Addresses, _, err = enforce.NodeAddresses()
	return s, err
}

// names returns the program of the Services that the agent knows, for their names alone: what happens to packets is read from the
// kernel. It returns nil if the agent has no copy.
func (h Host) names() (*services.Program, error) {
	s, err := h.SavedServices()
	if err != nil || s == nil {
		return nil, err
	}
	return services.Compile(s, nil), nil
}

// owner returns whose a frontend is, or "".
func (q *serviceQuestion) owner(f services.Frontend) string {
	if q.known == nil {
		return ""
	}
	o, ok := q.known.Holder(f)
	if !ok {
		return ""
	}
	return o.String()
}

// servicePrefix marks the name of a Service where a pod may have the same one.
const servicePrefix = "svc/"

// ServiceNamed returns the Service that a word may name: "svc/shop/web" or "shop/web". sure reports that it is no pod.
func ServiceNamed(word string) (name services.Name, sure, ok bool) {
	rest, sure := strings.CutPrefix(word, servicePrefix)
	name.Namespace, name.Name, ok = strings.Cut(rest, "/")
	return name, sure, ok && name.Namespace != "" && name.Name != "" && !strings.Contains(name.Name, "/")
}

// ErrNoNames means that this node has no copy of the names of Services.
var ErrNoNames = errors.New("the names of Services are not known on this node")

// Frontends returns the frontends of a Service that the agent knows.
func (h Host) Frontends(name services.Name) ([]services.Frontend, error) {
	return h.frontends(name, func(services.Holder) bool { return true })
}

// ClusterIPs returns those of them that have a cluster IP.
func (h Host) ClusterIPs(name services.Name) ([]services.Frontend, error) {
	return h.frontends(name, func(o services.Holder) bool { return o.Kind == services.KindClusterIP })
}

func (h Host) frontends(name services.Name, wanted func(services.Holder) bool) ([]services.Frontend, error) {
	p, err := h.names()
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, ErrNoNames
	}
	return slices.DeleteFunc(p.Frontends(name), func(f services.Frontend) bool {
		o, _ := p.Holder(f)
		return !wanted(o)
	}), nil
}
