// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// A network got another name between ADD and DEL.
func TestRenamed(t *testing.T) {
	for how, do := range map[string]struct {
		conf    string // of the DEL
		between func(w *world, p *endpointtest.Pod)
	}{
		"by name":     {conf: `"device": "hd0"`},
		"by address":  {conf: `"hwaddr": "` + mac0 + `"`},
		"no path":     {conf: `"device": "hd0"`, between: func(_ *world, p *endpointtest.Pod) { p.Call.NetNS = "" }},
		"other name":  {conf: `"device": "hd0"`, between: func(w *world, p *endpointtest.Pod) { w.renameLink(p, "eth7") }},
		"interrupted": {conf: `"device": "hd0"`, between: func(w *world, p *endpointtest.Pod) { w.giveBack(p, "eth0") }},
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("a")
			endpointtest.Must(t, p.Do(spec.Add))
			if do.between != nil {
				do.between(w, p)
			}
			p.Conf = renameTo("other", p.Conf, do.conf)
			p.Result = nil // a runtime would keep the result under the network's name
			endpointtest.Must(t, p.Do(spec.Del))
			w.isHome("DEL", "hd0")
		})
	}
}

// The ADD of a second network failed, because its device would have had the name of the first network's device. The DEL of
// the second network leaves the first one's device in the container.
func TestOtherNetworkLeavesIt(t *testing.T) {
	w := newWorld(t)
	w.device("hd1", mac1)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	conf, result := p.Conf, p.Result
	p.Conf, p.Result = renameTo("other", p.Conf, `"device": "hd1"`), nil
	p.Refused("the container has an interface")
	endpointtest.Must(t, p.Do(spec.Del))
	p.Conf, p.Result = conf, result
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Del))
	w.isHome("its own DEL", "hd0")
	w.isHome("", "hd1")
}

// renameTo is a configuration of another name and device.
func renameTo(network, conf, device string) string {
	conf = strings.Replace(conf, `"device": "hd0"`, device, 1)
	return strings.Replace(conf, `"name": "net"`, `"name": "`+network+`"`, 1)
}

func (w *world) renameLink(p *endpointtest.Pod, to string) {
	w.Helper()
	endpointtest.Must(w, p.Conn().LinkSetDown(p.Link("eth0")))
	endpointtest.Must(w, p.Conn().LinkSetName(p.Link("eth0"), to))
}
