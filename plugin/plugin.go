// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the SDK for CNI plugins.
//
// A plugin is a value of type Plugin. Its functions take a Request and return a Result. They
// never read the environment, print, exit or change the namespace of their thread. Main runs a
// Plugin as a program, and Builtin runs it inside another program. Both refuse the same calls
// before any work and write the same bytes.
//
//	func main() {
//		os.Exit(plugin.Main(&plugin.Plugin{Name: "mine", Add: add, Del: del}))
//	}
//
// If the Plugin has no function for a verb, a call of this verb succeeds and does nothing.
package plugin

import (
	"context"

	"github.com/patchbay-net/patchbay/spec"
)

// Kind says where in a chain a plugin belongs.
type Kind int

// These are the kinds of plugins.
const (
	Interface Kind = iota // makes the container's interface; first in a chain
	Chained               // adjusts what the plugins before it made
	IPAM                  // gives addresses to another plugin
)

// String returns the kind's name.
func (k Kind) String() string { return [...]string{"interface", "chained", "ipam"}[k] }

// DelOrder sorts plugins as a DEL calls them: those that made something for the interface
// first, addresses last.
func (k Kind) DelOrder() int { return [...]int{Chained: 0, Interface: 1, IPAM: 2}[k] }

// Plugin is one CNI plugin.
type Plugin struct {
	Name       string // the CNI type, such as "host-local"
	Kind       Kind
	About      string // description in one line
	MinVersion string // oldest version of the specification; empty means 0.1.0

	// Layer2 means that without ipam the result has no addresses. Versions before 0.3.0 cannot
	// express such a result. So the SDK refuses such an ADD before it calls the plugin.
	Layer2 bool

	// Capabilities lists the keys of runtimeConfig that the plugin understands.
	Capabilities []string

	// Conf returns a pointer to a configuration with default values. The SDK decodes the request
	// into it once (Request.Conf). The field tables in the documentation are generated from its
	// type.
	Conf func() any

	// NoPrev has the errors for a request without a previous result.
	NoPrev NoPrev

	// Delegates means that ADD and DEL call the configuration's IPAM plugin. The SDK then passes
	// CHECK, GC and STATUS to it.
	Delegates bool

	// Validate, which may be nil, returns the errors that Add would find in the configuration
	// before it changes anything, except errors of Conf. It looks only at the configuration.
	// STATUS calls it first. `patchbay network validate` calls it for any version of the
	// specification.
	Validate func(*Request) error

	// Warnings, which may be nil, describes settings that Validate, Add and the reference accept
	// but that are surely mistakes. `patchbay network validate` prints them.
	Warnings func(*Request) []string

	// Samples, which may be nil, returns answers that the ADD of an IPAM plugin could give, if
	// the configuration alone determines them. Together they use each of its ranges. The plugin
	// that calls the IPAM plugin validates them.
	Samples func(*Request) []*spec.Result

	// VersionsFor, which may be nil, returns those of Versions that the configuration in a
	// VERSION request allows. nil means all of them.
	VersionsFor func(context.Context, *Session, *spec.Call) []string

	// Helper, which may be nil, is work that the plugin does in a separate process, for example
	// under another security label. HelperArgs has the arguments of that process.
	Helper func(args []string) error

	Add    func(context.Context, *Request) (*spec.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request) error
}

// NoPrev has the texts of the errors for ADD and CHECK. They are the reference's. An empty
// text means that the verb works without a previous result.
type NoPrev struct{ Add, Check string }

// Versions lists the versions that the plugin supports, oldest first.
func (p *Plugin) Versions() []string {
	if p.MinVersion == "" {
		return spec.Versions()
	}
	return spec.VersionsFrom(p.MinVersion)
}
