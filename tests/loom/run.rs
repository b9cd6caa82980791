//! Runs the models, two at a time. With an argument, only those whose names contain it.

#[cfg(not(tower_breaker_loom))]
fn main() {
    println!("nothing to do without --cfg tower_breaker_loom");
}

#[cfg(tower_breaker_loom)]
fn main() -> std::process::ExitCode {
    use std::panic::catch_unwind;
    use std::process::ExitCode;
    use std::sync::Mutex;
    use std::time::Instant;

    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let part = part.unwrap_or_default();
    let models = tower_breaker::circuit_breaker::models::ALL
        .iter()
        .chain(tower_breaker::tripwire::models::ALL)
        .chain(tower_breaker::fallback::models::ALL);
    let chosen = models.filter(|(name, _)| name.contains(&part));
    let queue = Mutex::new(chosen);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some((name, model)) = next else { return };
                    let start = Instant::now();
                    let result = catch_unwind(model);
                    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
                    println!("model {name} ... {verdict}, {:.1?}", start.elapsed());
                    if result.is_err() {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}
