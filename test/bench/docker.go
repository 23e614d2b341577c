// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// dockerSubject is one way to give a container of Docker its network.
type dockerSubject struct {
	name, title string
	network     string // HostConfig.NetworkMode
	publish     bool   // publishes one fixed port
}

// Both dockerds have the same subjects: no network (the floor), Docker's bridge, and our driver
// with the bridge's services, once as a chain of plugins and once packed into one plugin.
var dockerSubjects = [...]dockerSubject{
	{"none", "`--network none`, the floor", "none", false},
	{"bridge", "Docker's bridge", "builtin", false},
	{"ours", "Patchbay: bridge, firewall", "two", false},
	{"one", "Patchbay: `type: patchbay`", "one", false},
	{"bridge-p", "Docker's bridge, `-p 8080:80`", "builtin", true},
	{"ours-p", "Patchbay: bridge, firewall, `-p 8080:80`", "two", true},
}

// dockerExperiment is the experiment's name on the command line.
const dockerExperiment = "docker"

// dockerKinds are the dockerds of the lab: Debian's and a current release.
var dockerKinds = [...]string{"old", "new"}

// dockerResult is what was measured with one dockerd.
type dockerResult struct {
	Version string                   `json:"version"`
	Run     map[string]sample        `json:"run"`     // time to create and start a container, by subject
	Remove  map[string]sample        `json:"remove"`  // time to remove a container, by subject
	Bursts  map[string]burst         `json:"bursts"`  // by subject; Add is run, Del is remove
	Calls   map[string]sample        `json:"calls"`   // calls of our driver, by method
	Plugins map[string][]millisecond `json:"plugins"` // calls of plugins by our driver, by "VERB plugin"
}

// millisecond is a time in milliseconds, because the driver's log is no more exact.
type millisecond float64

// errNoDocker means that there is no Docker to measure.
var errNoDocker = errors.New("docker is left out")

// docker measures `docker run` on both dockerds.
func (l *lab) docker() error {
	l.results.Docker = map[string]*dockerResult{}
	for _, kind := range dockerKinds {
		r, err := l.dockerOf(kind)
		if errors.Is(err, errNoDocker) {
			l.results.Notes["Docker"] = err.Error()
			fmt.Fprintln(os.Stderr, "bench:", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("dockerd %s: %w", kind, err)
		}
		l.results.Docker[kind] = r
	}
	return nil
}

func (l *lab) dockerOf(kind string) (r *dockerResult, err error) {
	h, err := startDockerHost(kind, l.plugins[ours])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	r = &dockerResult{Run: map[string]sample{}, Remove: map[string]sample{}, Bursts: map[string]burst{}}
	if r.Version, err = h.api.version(); err != nil {
		return nil, err
	}
	if err := l.dockerRounds(h, r); err != nil {
		return nil, err
	}
	if err := l.dockerBursts(h, r); err != nil {
		return nil, err
	}
	return r, l.dockerCalls(h, r)
}

// dockerWarmup is the number of first rounds that do not count. They make the bridges and the base
// chains.
const dockerWarmup = 1

// dockerSeed makes the order of the subjects the same in each run.
const dockerSeed = 20

// dockerRounds lets the subjects take turns, in a random order in each round. The kernel removes
// namespaces late, so a container's time depends on the container before it. In a fixed order, one
// subject would always pay for the same other one.
func (l *lab) dockerRounds(h *dockerHost, r *dockerResult) error {
	for round := range l.pick(20, 3) + dockerWarmup {
		for _, i := range rand.New(rand.NewPCG(dockerSeed, uint64(round))).Perm(len(dockerSubjects)) {
			s := dockerSubjects[i]
			run, remove, err := h.round(s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round >= dockerWarmup {
				r.Run[s.name] = append(r.Run[s.name], cost{Wall: run})
				r.Remove[s.name] = append(r.Remove[s.name], cost{Wall: remove})
			}
		}
	}
	return nil
}

// round starts and removes one container.
func (h *dockerHost) round(s dockerSubject) (run, remove time.Duration, err error) {
	begin := time.Now()
	id, err := h.api.run(s)
	if err != nil {
		return 0, 0, err
	}
	run = time.Since(begin)
	begin = time.Now()
	err = h.api.remove(id)
	return run, time.Since(begin), err
}

const dockerCallers = 8

// dockerBursts lets several callers start containers at once, and remove them at once.
func (l *lab) dockerBursts(h *dockerHost, r *dockerResult) error {
	for _, s := range dockerSubjects {
		if s.publish { // only one container can have the port
			continue
		}
		ids := make([]string, l.pick(3, 1)*dockerCallers)
		run, err := eachAtOnce(ids, func(id *string) (err error) { *id, err = h.api.run(s); return err })
		if err != nil {
			return fmt.Errorf("%s, %d callers: %w", s.name, dockerCallers, err)
		}
		remove, err := eachAtOnce(ids, func(id *string) error { return h.api.remove(*id) })
		if err != nil {
			return fmt.Errorf("%s, %d callers: %w", s.name, dockerCallers, err)
		}
		r.Bursts[s.name] = burst{Pods: len(ids), Add: sample{{Wall: run}}, Del: sample{{Wall: remove}}}
	}
	return nil
}

// eachAtOnce calls fn for every element, with dockerCallers calls at once. It returns the time
// until the last call has ended.
func eachAtOnce(all []string, fn func(*string) error) (time.Duration, error) {
	todo, errs := make(chan *string), make([]error, dockerCallers)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range dockerCallers {
		wg.Go(func() {
			for one := range todo {
				errs[i] = errors.Join(errs[i], fn(one))
			}
		})
	}
	for i := range all {
		todo <- &all[i]
	}
	close(todo)
	wg.Wait()
	return time.Since(begin), errors.Join(errs...)
}

// dockerCalls shows which calls take our time. It repeats the measurement through a proxy that
// times each call of the driver. The driver's own log has the times of its plugins.
func (l *lab) dockerCalls(h *dockerHost, r *dockerResult) error {
	if err := h.logFromHere(); err != nil {
		return err
	}
	h.proxy.forget()
	for range l.pick(10, 2) {
		if _, _, err := h.round(dockerSubject{network: "timed", publish: true}); err != nil {
			return err
		}
	}
	r.Calls = h.proxy.forget()
	var err error
	r.Plugins, err = h.pluginTimes()
	return err
}
