//! The screen in a terminal: one thread records, this one draws and reads keys.

use super::keys::{Key, keys};
use super::screen::draw;
use super::state::{Halt, State};
use super::terminal::Terminal;
use super::windows::{Next, Taken, Windows};
use crate::commands::explain;
use crate::commands::shared::diagnosis::{Diagnosis, extent};
use crate::commands::shared::state::{RECORDING, new_state_file};
use crate::output;
use crate::printer::Printer;
use allocwall_measure::file;
use allocwall_report::layout::elide_end;
use allocwall_report::text::{Ink, Page, Style};
use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io::{Read, Write, stdin};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

/// A target that can't be recorded is refused within this time, before the screen opens.
const REFUSED_WITHIN: Duration = Duration::from_millis(150);

const KEYS: [(&str, &str); 7] = [
    ("q", "quit; Ctrl-C does the same"),
    ("s", "save the last window as a recording in the state directory"),
    ("r Enter", "the report of the last window"),
    ("↑ ↓", "select a line of the screen"),
    ("e →", "explain the selected line; without one, the wall"),
    ("p", "pause, and go on"),
    ("?", "this help"),
];
const HELP: [&str; 2] = [
    "In a report or an explanation: ↑ ↓ Space b g G scroll, a shows everything that was measured, q goes back.",
    "The bill is that of the last window, and of the windows of the last minute together. Windows are short: `allocwall diagnose` records a \
     longer one, and judges better. allocwall pauses between two windows if it would use more than 1 % of the machine's CPU time otherwise.",
];

/// Wakes the thread that draws, also if the one that records panics.
struct Waker(UnixStream);

impl Waker {
    fn wake(&self) {
        // If it is full, the other end is awake anyway.
        let _ = (&self.0).write(b".");
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.wake();
    }
}

enum News {
    Window(Box<Taken>),
    Halt(Halt),
    Failed(anyhow::Error),
}

/// What both threads see.
struct Shared {
    stopped: AtomicBool,
    paused: AtomicBool,
}

pub fn run(windows: Windows, printer: &Printer) -> anyhow::Result<ExitCode> {
    let (wake, woken) = UnixStream::pair().context("cannot make a pipe")?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let shared = Arc::new(Shared { stopped: AtomicBool::new(false), paused: AtomicBool::new(false) });
    let mut ui = Ui {
        printer,
        state: State::new(windows.every()),
        page: None,
        saved_from: None,
        shared: shared.clone(),
        rows: vec![],
    };
    // If the terminal takes no more text, the recorder waits: recordings in the queue take memory.
    let (send, news) = sync_channel(1);
    let waker = Waker(wake.try_clone()?);
    std::thread::Builder::new()
        .name("records".into())
        .spawn(move || follow(windows, &shared, send, waker))
        .context("cannot start a thread")?;
    match news.recv_timeout(REFUSED_WITHIN) {
        Ok(News::Failed(error)) => return Err(error),
        Ok(first) => ui.hear(first)?,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGWINCH] {
        if signal != SIGWINCH {
            // A second signal ends it at once, even if the terminal takes no more text.
            signal_hook::flag::register_conditional_default(signal, ended.clone())
                .and_then(|_| signal_hook::flag::register(signal, ended.clone()))
                .context("cannot catch signals")?;
        }
        signal_hook::low_level::pipe::register(signal, wake.try_clone()?).context("cannot catch signals")?;
    }
    let mut terminal = Terminal::open(printer)?;
    let outcome = ui.serve(&mut terminal, &news, woken, &ended);
    drop(terminal);
    // The recording thread ends with the process.
    ui.shared.stopped.store(true, Ordering::Relaxed);
    if let Some(path) = &ui.saved_from {
        printer.note(&format!("recording: {path}"));
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Records until it is stopped or the target ends.
fn follow(mut windows: Windows, shared: &Shared, send: SyncSender<News>, waker: Waker) {
    // In this order at the end: the sender, then the waker, so that who is woken sees that nothing follows.
    let (waker, send) = (waker, send);
    loop {
        let (news, last) = match windows.next(&shared.stopped, &shared.paused) {
            Ok(Next::Window(taken)) => (News::Window(taken), false),
            Ok(Next::Ended) => (News::Halt(Halt::Ended), true),
            Ok(Next::Interrupted) => return,
            Err(error) => (News::Failed(error), true),
        };
        if send.send(news).is_err() {
            return;
        }
        waker.wake();
        if last {
            return;
        }
    }
}

/// A text over the whole screen.
struct Shown {
    content: Content,
    /// The first line that is shown.
    from: usize,
}

enum Content {
    Report { diagnosis: Box<Diagnosis>, all: bool },
    Explained(String),
    Help,
}

struct Ui<'a> {
    printer: &'a Printer,
    state: State,
    page: Option<Shown>,
    /// The recording that was saved last.
    saved_from: Option<String>,
    shared: Arc<Shared>,
    /// The rows that can be selected, as the screen was drawn last.
    rows: Vec<super::state::Row>,
}

impl Ui<'_> {
    /// Until the user quits, a signal comes, or the terminal is gone.
    fn serve(
        &mut self,
        terminal: &mut Terminal,
        news: &Receiver<News>,
        mut woken: UnixStream,
        ended: &AtomicBool,
    ) -> anyhow::Result<()> {
        let mut buffer = [0; 256];
        loop {
            self.show(terminal)?;
            let input = stdin();
            let mut ready = [PollFd::new(&input, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let typed = ready[0].revents();
            if ended.load(Ordering::Relaxed)
                || typed.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
            {
                return Ok(());
            }
            while woken.read(&mut buffer).is_ok_and(|read| read == buffer.len()) {}
            loop {
                match news.try_recv() {
                    Ok(news) => self.hear(news)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        if matches!(self.state.halt, None | Some(Halt::Paused)) {
                            self.hear(News::Failed(anyhow!("the recording stopped: internal error")))?;
                        }
                        break;
                    }
                }
            }
            if typed.contains(PollFlags::IN) {
                let read = rustix::io::read(&input, &mut buffer).unwrap_or(0);
                if read == 0 {
                    return Ok(());
                }
                for key in keys(&buffer[..read]) {
                    if self.press(key) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// # Errors
    /// There will be no window, and there was none.
    fn hear(&mut self, news: News) -> anyhow::Result<()> {
        match news {
            News::Window(taken) => self.state.add(*taken),
            News::Halt(halt) => self.state.halt = Some(halt),
            News::Failed(error) if self.state.count == 0 => return Err(error),
            News::Failed(error) => self.state.halt = Some(Halt::Failed(format!("{error:#}"))),
        }
        Ok(())
    }

    fn show(&mut self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let (width, height) = Terminal::size();
        let color = self.printer.color();
        let Some(page) = &mut self.page else {
            let drawn = draw(&self.state, (width, height), color);
            self.rows = drawn.rows;
            return terminal.show(&drawn.lines);
        };
        let style = Style { color, width: width.min(Style::FILE.width) };
        let text = page.content.text(style, self.printer)?;
        let lines: Vec<&str> = text.lines().collect();
        let room = height.saturating_sub(1).max(1);
        page.from = page.from.min(lines.len().saturating_sub(room));
        let until = (page.from + room).min(lines.len());
        let mut shown: Vec<String> = lines[page.from..until].iter().map(|line| (*line).to_owned()).collect();
        shown.resize(room, String::new());
        let keys = page.content.keys();
        let place = format!("lines {} to {until} of {} · {keys}", page.from + 1, lines.len());
        shown.push(elide_end(&place, width));
        terminal.show(&shown)
    }

    /// True if the user quits.
    fn press(&mut self, key: Key) -> bool {
        self.state.note = None;
        let height = Terminal::size().1.saturating_sub(2).max(1);
        if let Some(page) = &mut self.page {
            match key {
                Key::Quit | Key::Back => self.page = None,
                Key::Up => page.from = page.from.saturating_sub(1),
                Key::Down => page.from += 1,
                Key::PageUp => page.from = page.from.saturating_sub(height),
                Key::PageDown => page.from += height,
                Key::Home => page.from = 0,
                // `show` limits it.
                Key::End => page.from = usize::MAX / 2,
                Key::All => page.content.toggle(),
                _ => {}
            }
            return false;
        }
        match key {
            Key::Quit => return true,
            Key::Save => self.save(),
            Key::Report => self.report(),
            Key::Explain => self.explain(),
            Key::Help => self.page = Some(Shown { content: Content::Help, from: 0 }),
            Key::Pause => self.pause(),
            Key::Up | Key::Down => self.select(key == Key::Down),
            Key::Back => self.state.selected = None,
            Key::All | Key::PageUp | Key::PageDown | Key::Home | Key::End => {}
        }
        false
    }

    fn pause(&mut self) {
        if !matches!(self.state.halt, None | Some(Halt::Paused)) {
            return;
        }
        let paused = self.state.halt.is_none();
        self.shared.paused.store(paused, Ordering::Relaxed);
        self.state.halt = paused.then_some(Halt::Paused);
    }

    fn select(&mut self, down: bool) {
        self.state.select(&self.rows, down);
        let name = self.state.selected.map(|row| row.name());
        let about = name.and_then(|name| explain::about(name, Style::FILE.width, self.printer));
        self.state.note = about.map(|about| format!("e explains · {}", about.gist));
    }

    fn save(&mut self) {
        let Some(bytes) = self.state.bytes() else { return };
        let saved = new_state_file(RECORDING, self.printer).and_then(|path| {
            output::write(&path, bytes, None)?;
            Ok(path.display().to_string())
        });
        self.state.note = Some(match &saved {
            Ok(path) => format!("saved: {path}"),
            Err(error) => format!("not saved: {error:#}"),
        });
        self.saved_from = saved.ok().or(self.saved_from.take());
    }

    fn report(&mut self) {
        let Some(bytes) = self.state.bytes() else { return };
        match file::decode(Path::new("(last window)"), bytes) {
            Ok(recording) => {
                let diagnosis = Box::new(Diagnosis::of(recording, None));
                self.page = Some(Shown { content: Content::Report { diagnosis, all: false }, from: 0 });
            }
            Err(error) => self.state.note = Some(error.to_string()),
        }
    }

    fn explain(&mut self) {
        let wall = || Some(self.state.judge().walls.first()?.wall.title());
        match self.state.selected.map(|row| row.name()).or_else(wall) {
            Some(name) => self.page = Some(Shown { content: Content::Explained(name.to_owned()), from: 0 }),
            None => self.state.note = Some("select a line with ↑ and ↓ first".to_owned()),
        }
    }
}

impl Content {
    fn text(&self, style: Style, printer: &Printer) -> anyhow::Result<String> {
        match self {
            Content::Report { diagnosis, all } => Ok(diagnosis.text(extent(*all), style)),
            Content::Explained(name) => Ok(explain::about(name, style.width, printer)
                .map_or_else(|| format!("There is no explanation of {name}."), |about| about.text)),
            Content::Help => Ok(help(style)),
        }
    }

    fn keys(&self) -> &'static str {
        match self {
            Content::Report { all: false, .. } => "↑↓ scroll · a everything · q back",
            Content::Report { all: true, .. } => "↑↓ scroll · a in short · q back",
            Content::Explained(_) | Content::Help => "↑↓ scroll · q back",
        }
    }

    fn toggle(&mut self) {
        if let Content::Report { all, .. } = self {
            *all = !*all;
        }
    }
}

fn help(style: Style) -> String {
    let mut page = Page::new(style);
    for (key, does) in KEYS {
        page.hang(key, Ink::Heading, 9, does, Ink::Plain);
    }
    for text in HELP {
        page.blank();
        page.wrapped(0, text, Ink::Plain);
    }
    page.out
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_report::layout::columns;

    #[test]
    fn the_help_fits_the_narrowest_screen() {
        let text = help(Style { color: false, width: 44 });
        assert!(text.lines().all(|line| columns(line) <= 44), "{text}");
        assert!(text.contains("this help") && text.contains("q goes") && text.contains("otherwise."));
    }
}
