// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/cli/why"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/services"
	svc "github.com/patchbay-net/patchbay/internal/services/enforce"
)

// explainedService is what explain prints for a Service.
type explainedService struct {
	Service   string              `json:"service"` // as it was asked
	Frontends []explainedFrontend `json:"frontends"`
	Unused    []string            `json:"unused,omitempty"` // endpoints that get no connection of this node, with the reason
}

// explainedFrontend is one frontend with its elements in the kernel.
type explainedFrontend struct {
	Frontend string   `json:"frontend"`
	Service  string   `json:"service,omitempty"` // "shop/web http, cluster IP", if the agent knows it
	State    []string `json:"state"`
	Missing  []string `json:"missing,omitempty"` // elements that the agent's Services have, and the kernel does not
	Besides  []string `json:"besides,omitempty"` // elements that only the kernel has
}

// serviceNamed reports whether the word of an explain can only be a Service: svc/NAMESPACE/NAME, or an address with or without a port. A file
// with this path is a network.
func serviceNamed(word string) (target why.Target, ok bool) {
	target, err := why.ParseTarget(word)
	if err != nil {
		return target, false
	}
	if _, sure, named := why.ServiceNamed(target.Word); named {
		_, err := os.Lstat(word)
		return target, sure && errors.Is(err, os.ErrNotExist)
	}
	_, err = netip.ParseAddr(target.Word)
	return target, err == nil
}

// service prints the elements of a Service. If the agent keeps a copy of its Services and the kernel differs from it, service fails.
func (c *explainCommand) service(target why.Target) error {
	if c.NetNS != "" || c.ID != "example" || len(c.Ports)+len(c.IPs)+len(c.MAC) > 0 {
		return usage("", "--id, --netns, and the flags of ports and addresses go with a network, not with a Service")
	}
	if err := needRoot("explain of a Service"); err != nil {
		return err
	}
	s := c.app.session()
	defer s.Close()
	f, err := c.app.finder(kernel.OfSession(s))
	if err != nil {
		return err
	}
	var list []services.Frontend
	if _, aerr := netip.ParseAddr(target.Word); aerr != nil {
		if list, err = f.named(target.Word, f.host.Frontends); err != nil {
			return err
		}
	}
	e, err := c.explainService(f, target, list)
	if err != nil {
		return err
	}
	return errors.Join(c.app.show(e, e.text()), e.differs())
}

func (c *explainCommand) explainService(f *finder, target why.Target, list []services.Frontend) (e *explainedService, err error) {
	known, err := f.host.SavedServices()
	if err != nil {
		return nil, err
	}
	err = svc.WithView(f.host.FW, func(v *svc.View) error {
		e = &explainedService{Service: string(c.Args.Network), Frontends: []explainedFrontend{}}
		if err := v.Readable(); err != nil {
			return err
		}
		all := list
		if all == nil {
			a, _ := netip.ParseAddr(target.Word) // Execute has parsed it
			if all, err = v.Frontends(a.Unmap()); err != nil {
				return err
			}
		}
		all = matching(all, target)
		have, err := v.Around(all...)
		if err != nil {
			return err
		}
		e.add(have, known, all)
		return nil
	})
	if err == nil && len(e.Frontends) == 0 {
		return nil, fmt.Errorf("no Service has a frontend %s here", c.Args.Network)
	}
	return e, err
}

// add adds frontends, compared with what the agent knows if it keeps a copy.
func (e *explainedService) add(have services.Table, known *services.State, all []services.Frontend) {
	var p *services.Program
	var wanted services.Table
	if known != nil {
		p = services.CompileOver(known, have)
		wanted = p.Table()
	}
	var names []services.Name
	for _, f := range all {
		x := explainedFrontend{Frontend: why.FrontendText(f), State: []string{}}
		got := have.Of(f)
		for _, element := range got {
			x.State = append(x.State, element.String())
		}
		if p != nil {
			want := wanted.Of(f)
			x.Missing, x.Besides = without(want, got), without(got, want)
			if h, ok := p.Holder(f); ok {
				x.Service = h.String()
				if !slices.Contains(names, h.Service) {
					names = append(names, h.Service)
				}
			}
		}
		e.Frontends = append(e.Frontends, x)
	}
	for _, name := range names {
		for _, u := range known.Unused(name) {
			e.Unused = append(e.Unused, strings.TrimSpace(fmt.Sprintf("%s %s", u.Endpoint, u.Port))+": "+u.Why)
		}
	}
}

// without returns the elements that the other list lacks.
func without(list, other []services.Element) (texts []string) {
	for _, e := range list {
		if !slices.Contains(other, e) {
			texts = append(texts, e.String())
		}
	}
	return texts
}

// text returns one block for each frontend. What differs is marked.
func (e *explainedService) text() string {
	var b strings.Builder
	for _, f := range e.Frontends {
		b.WriteString("# " + f.Frontend)
		if f.Service != "" {
			b.WriteString(", " + f.Service)
		}
		b.WriteString("\n")
		for _, line := range f.State {
			if slices.Contains(f.Besides, line) {
				line += "    <- the agent does not have it"
			}
			b.WriteString(line + "\n")
		}
		for _, line := range f.Missing {
			b.WriteString(line + "    <- the kernel lacks it\n")
		}
	}
	if len(e.Unused) > 0 {
		b.WriteString("# endpoints that get no connection\n" + strings.Join(e.Unused, "\n") + "\n")
	}
	return b.String()
}

// differs returns an error if the kernel is not as the agent's Services say.
func (e *explainedService) differs() error {
	var errs []error
	for _, f := range e.Frontends {
		if n := len(f.Missing) + len(f.Besides); n > 0 {
			errs = append(errs, fmt.Errorf("%s: the kernel differs in %d elements from the agent's copy of its Services, which may be a minute old", f.Frontend, n))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return hinted(err, "patchbay doctor --check services")
	}
	return nil
}
